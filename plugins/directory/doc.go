// Package directory is the driver.
package directory
