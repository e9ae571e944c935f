// Package yamldoc reads YAML that people write and programs check: every value knows its place, and every mistake is
// reported with file, line, what is wrong and what to do, all of them at once.
//
// What the values mean is the business of the rooms that read them. It is the only package that knows YAML, and it starts
// nothing.
package yamldoc
