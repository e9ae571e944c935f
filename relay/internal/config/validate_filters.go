package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/internal/condition"
)

// checkFilters checks the filter keys of a sink and converts the lists for relay.Filter.
func (l *loader) checkFilters(path string, s *Sink, catalog *relay.Catalog) {
	checkTopics(path, s.Topics, catalog, l.Error)
	s.Hubs = l.checkValues(path+".hubs", s.Hubs, checkIdentifier)
	s.Accounts = l.checkValues(path+".accounts", s.Accounts, checkIdentifier)
	s.Environments = l.checkValues(path+".environments", s.Environments, checkName)
	s.Clusters = l.checkValues(path+".clusters", s.Clusters, checkName)
	s.Containers = l.checkValues(path+".containers", s.Containers, checkName)
	l.checkCondition(path+".when", s.When)
}

// checkTopics reports each invalid pattern, and each that matches no topic of the catalog. The catalog is nil if it is invalid.
func checkTopics(path string, patterns []string, catalog *relay.Catalog, report func(path, text, hint string)) {
	if catalog == nil {
		return
	}
	for i, pattern := range patterns {
		if err := catalog.CheckPatterns([]string{pattern}); err != nil {
			report(fmt.Sprintf("%s.topics[%d]", path, i), err.Error(), "")
		}
	}
}

// checkCondition reports an error at the position of the text in the file. The message contains the position in
// the text.
func (l *loader) checkCondition(path, text string) {
	_, err := condition.Compile(text)
	if err == nil {
		return
	}
	var e *condition.Error
	switch {
	case !errors.As(err, &e):
		l.Error(path, err.Error(), "")
	case e.Place() == "":
		l.Error(path, e.Text, e.Hint)
	default:
		l.Error(path, e.Place()+": "+e.Text, e.Hint)
	}
}

// checkValues checks a list of literal values. It returns nil if the list means "all".
func (l *loader) checkValues(path string, list []string, check func(string) string) []string {
	for i, value := range list {
		if problem := check(value); problem != "" {
			l.Error(fmt.Sprintf("%s[%d]", path, i), problem, "")
		}
	}
	if slices.Contains(list, "*") {
		return nil
	}
	return list
}

// checkName checks a value that occurs in notifications. Producers decide on its characters.
func checkName(name string) string {
	switch {
	case name == "":
		return "is empty"
	case len(name) > 256:
		return "is longer than 256 bytes"
	case name != "*" && strings.Contains(name, "*"):
		return fmt.Sprintf("%q: a * is allowed only as the complete value", relay.Truncate(name, maxQuoted))
	}
	return ""
}

func checkIdentifier(id string) string {
	if problem := checkName(id); problem != "" {
		return problem
	}
	if strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "contains white space or other characters that are invalid in a header"
	}
	return ""
}
