// Package plugintest checks that a program, in any language, follows the plugin protocol. `hubrelay plugins check`
// prints the result, and [Run] makes a test of it.
//
// It is independent of a plugin's purpose: any answer to a notification is accepted, and drivers receive only
// migrations that they must reject.
package plugintest
