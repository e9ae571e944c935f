// Package setup writes the files that a user starts with: a configuration, for `hubrelay init`, and the skeleton of a
// plugin, for `hubrelay plugins new`.
//
// The templates of plugins are in templates/LANGUAGE. A file with the suffix .tmpl is rendered, any other file is
// copied. The Python code that protoc generates is the same as in examples/plugin-python. Flags do not belong here,
// they are in package cli.
package setup
