// Package yamldoc reads YAML that people write. Every value has a position, and all errors are reported at once
// with file, line, problem and advice.
//
// The callers interpret the values. Only this package uses the YAML library. It starts no goroutines.
package yamldoc
