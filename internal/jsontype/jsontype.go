// Package jsontype names the types of JSON values in error texts.
package jsontype

// Name returns the type of a JSON value that starts with c, for an error text: "an object", "null" and so
// on.
func Name(c byte) string {
	switch c {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	default:
		return "a number"
	}
}
