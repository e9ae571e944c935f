package brokers

import (
	"errors"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hubrelay/hubrelay/internal/suggest"
	"github.com/hubrelay/hubrelay/relay"
)

// nameRule describes valid names of topics, subjects, routing keys, streams or tables of a broker.
type nameRule struct {
	// maxBytes is the maximum length of a name.
	maxBytes int
	// allowed reports whether a value from a notification may contribute the character; "_" replaces others. A dot in a
	// hub or an account is always replaced, because brokers separate words at dots.
	allowed func(rune) bool
	// lower converts those values to lower case.
	lower bool
	// check returns what is wrong with a complete name.
	check func(string) error
}

// nameTemplate is a name with placeholders.
type nameTemplate struct {
	setting string
	parts   []namePart
	rule    nameRule
}

// namePart is either a text or a placeholder.
type namePart struct{ text, placeholder string }

func placeholders() []string { return []string{"topic", "topic_path", "hub", "account"} }

// parseName parses a text with placeholders and checks it with sample values.
func parseName(setting, text string, r nameRule) (nameTemplate, error) {
	n := nameTemplate{setting: setting, rule: r}
	for rest := text; rest != ""; {
		before, tail, found := strings.Cut(rest, "{")
		if strings.Contains(before, "}") {
			return n, fieldError(setting, "has a } without a {")
		}
		if before != "" {
			n.parts = append(n.parts, namePart{text: before})
		}
		if !found {
			break
		}
		word, after, closed := strings.Cut(tail, "}")
		if !closed {
			return n, fieldError(setting, "has a { without a }")
		}
		if err := checkPlaceholder(setting, word); err != nil {
			return n, err
		}
		n.parts = append(n.parts, namePart{placeholder: word})
		rest = after
	}
	if _, err := n.expand(nameValues{topic: "container.created", hub: "hub", account: "account"}); err != nil {
		return n, err
	}
	return n, nil
}

func checkPlaceholder(setting, word string) error {
	if slices.Contains(placeholders(), word) {
		return nil
	}
	hint := "the placeholders are {" + strings.Join(placeholders(), "}, {") + "}"
	if nearest := suggest.ClosestName(word, placeholders()); nearest != "" {
		hint = "did you mean {" + nearest + "}?"
	}
	return fieldError(setting, "has the placeholder {%s}, which is not known; %s", relay.Truncate(word, 40), hint)
}

// nameValues are the values of the placeholders. An empty value becomes "_".
type nameValues struct{ topic, hub, account string }

// expand returns the name for the values of a delivery. An error is permanent.
func (n nameTemplate) expand(v nameValues) (string, error) {
	var b strings.Builder
	for _, p := range n.parts {
		switch p.placeholder {
		case "":
			b.WriteString(p.text)
		case "topic":
			n.writeValue(&b, v.topic, true)
		case "topic_path":
			for i, word := range strings.Split(v.topic, ".") {
				if i > 0 {
					b.WriteByte('/')
				}
				n.writeValue(&b, word, false)
			}
		case "hub":
			n.writeValue(&b, v.hub, false)
		case "account":
			n.writeValue(&b, v.account, false)
		}
	}
	text := b.String()
	if len(text) > n.rule.maxBytes {
		return "", fieldError(n.setting, "expands to a name of %d bytes, and the broker allows %d: "+
			"shorten it, or remove a placeholder", len(text), n.rule.maxBytes)
	}
	if err := n.rule.check(text); err != nil {
		return "", fieldError(n.setting, "expands to %q: %v", relay.Truncate(text, 80), err)
	}
	return text, nil
}

// writeValue appends a value with "_" for each character that is not allowed.
func (n nameTemplate) writeValue(b *strings.Builder, value string, dots bool) {
	if value == "" {
		b.WriteByte('_')
	}
	for _, r := range value {
		if r == utf8.RuneError || r == '.' && !dots || !n.rule.allowed(r) {
			r = '_'
		}
		if n.rule.lower {
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
}

func isPlainLetter(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-'
}

// printableExcept allows all printable characters except white space and those listed.
func printableExcept(forbidden string) func(rune) bool {
	return func(r rune) bool {
		return unicode.IsPrint(r) && !unicode.IsSpace(r) && !strings.ContainsRune(forbidden, r)
	}
}

// checkRunes returns a check that fails with problem if a character is not allowed.
func checkRunes(allowed func(rune) bool, problem string) func(string) error {
	return func(text string) error {
		for _, r := range text {
			if !allowed(r) {
				return errors.New(problem)
			}
		}
		return nil
	}
}
