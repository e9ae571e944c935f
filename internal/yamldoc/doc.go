// Package yamldoc reads YAML that people write. Every value has a position, and all errors are reported at once
// with file, line, problem and advice.
//
// The callers decide what the values mean. Only this package uses the YAML library. It starts nothing.
package yamldoc
