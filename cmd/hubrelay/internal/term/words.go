package term

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Pluralize is n things.
func Pluralize(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return strconv.Itoa(n) + " " + thing
}

// ProgramName is how the reader started this program, so that the printed commands work from the same folder.
func ProgramName() string {
	if strings.ContainsRune(os.Args[0], filepath.Separator) {
		return os.Args[0]
	}
	return "hubrelay"
}
