package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// pluralize is n things.
func pluralize(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return strconv.Itoa(n) + " " + thing
}

// programName is how the reader started this program, so that the printed commands work from the same folder.
func programName() string {
	if strings.ContainsRune(os.Args[0], filepath.Separator) {
		return os.Args[0]
	}
	return "hubrelay"
}
