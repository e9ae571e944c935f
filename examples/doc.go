// Package examples contains small complete programs to copy: clients, a webhook receiver, publishers and plugins. Its
// tests run each of them with a real daemon.
//
// Examples are short but handle errors. The daemon must not depend on them.
package examples
