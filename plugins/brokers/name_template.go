package brokers

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/hubrelay/hubrelay/relay"
)

// nameRule is what a broker asks of the name of a topic, subject, stream or table.
type nameRule struct {
	// maxBytes is how many bytes a name may have.
	maxBytes int
	// allowed tells of each character of a notification's own values whether the name may hold it; others become "_". A dot
	// is never taken from a hub or an account, since brokers read it as the end of a word.
	allowed func(rune) bool
	// lower turns those values into lower case.
	lower bool
	// check judges a whole name. Its error says what is wrong with it.
	check func(string) error
}

// nameTemplate is where notifications go: a text with placeholders.
type nameTemplate struct {
	setting string
	parts   []namePart
	rule    nameRule
}

// namePart is a text or, where it has one, a placeholder.
type namePart struct{ text, placeholder string }

func placeholders() []string { return []string{"topic", "topic_path", "hub", "account"} }

// parseName reads a text with placeholders and tries it with a sample.
func parseName(setting, text string, r nameRule) (nameTemplate, error) {
	n := nameTemplate{setting: setting, rule: r}
	for rest := text; rest != ""; {
		before, behind, found := strings.Cut(rest, "{")
		if strings.Contains(before, "}") {
			return n, fieldError(setting, "has a } without a {")
		}
		if before != "" {
			n.parts = append(n.parts, namePart{text: before})
		}
		if !found {
			break
		}
		word, after, closed := strings.Cut(behind, "}")
		if !closed {
			return n, fieldError(setting, "has a { without a }")
		}
		if err := checkPlaceholder(setting, word); err != nil {
			return n, err
		}
		n.parts = append(n.parts, namePart{placeholder: word})
		rest = after
	}
	if _, err := n.expand(values{topic: "container.created", hub: "hub", account: "account"}); err != nil {
		return n, err
	}
	return n, nil
}

func checkPlaceholder(setting, word string) error {
	for _, p := range placeholders() {
		if p == word {
			return nil
		}
	}
	hint := "the placeholders are {" + strings.Join(placeholders(), "}, {") + "}"
	if nearest := relay.ClosestName(word, placeholders()); nearest != "" {
		hint = "did you mean {" + nearest + "}?"
	}
	return fieldError(setting, "has the placeholder {%s}, which is not known; %s", relay.Truncate(word, 40), hint)
}

// values are what placeholders stand for. An empty one becomes "_".
type values struct{ topic, hub, account string }

// expand is the name for a delivery. Its error says what no name can be.
func (n nameTemplate) expand(v values) (string, error) {
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
		return "", fieldError(n.setting, "gives a name of %d bytes, and the broker allows %d: shorten it, or leave a placeholder out",
			len(text), n.rule.maxBytes)
	}
	if err := n.rule.check(text); err != nil {
		return "", fieldError(n.setting, "gives %q: %v", relay.Truncate(text, 80), err)
	}
	return text, nil
}

// writeValue adds a value with "_" for each character that the name may not hold.
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

func plainLetter(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-'
}

// printableBut allows what can be seen, except for some.
func printableBut(forbidden string) func(rune) bool {
	return func(r rune) bool {
		return unicode.IsPrint(r) && !unicode.IsSpace(r) && !strings.ContainsRune(forbidden, r)
	}
}

// every fails where some character of a name is not allowed.
func every(allowed func(rune) bool, what string) func(string) error {
	return func(text string) error {
		for _, r := range text {
			if !allowed(r) {
				return errors.New(what)
			}
		}
		return nil
	}
}
