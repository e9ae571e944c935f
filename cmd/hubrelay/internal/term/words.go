package term

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Pluralize returns n and thing, which is in the plural unless n is 1: "2 events", "2 deliveries".
func Pluralize(n int, thing string) string {
	switch stem, endsInRY := strings.CutSuffix(thing, "ry"); {
	case n == 1:
	case endsInRY:
		thing = stem + "ries"
	default:
		thing += "s"
	}
	return strconv.Itoa(n) + " " + thing
}

// ProgramName returns the program name for printed commands, so they work in the current directory.
func ProgramName() string {
	if strings.ContainsRune(os.Args[0], filepath.Separator) {
		return os.Args[0]
	}
	return "hubrelay"
}
