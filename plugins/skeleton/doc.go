// Package skeleton writes the beginning of a plugin into a folder: a sink that works, its test, a configuration of the
// daemon to try it with, and a README that says how.
//
// Templates are in templates/LANGUAGE, where .tmpl is filled in and anything else copied. The Python code that protoc has
// made is the same as in examples/plugin-python. What a command line looks like must not come in.
package skeleton
