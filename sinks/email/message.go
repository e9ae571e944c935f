package email

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/mail"
	"strings"
	"time"
	"unicode"

	gomail "github.com/wneessen/go-mail"

	"github.com/hubrelay/hubrelay/internal/message"
	"github.com/hubrelay/hubrelay/internal/tmpl"
	"github.com/hubrelay/hubrelay/relay"
)

// composer builds mails.
type composer struct {
	sink      string
	from      *mail.Address
	to, cc    []*mail.Address
	userAgent string
	summaries *message.Builder
	templates *tmpl.Set
}

func newComposer(s relay.SinkSettings, c *Config) (*composer, error) {
	from, err := parseAddress(c.Sender)
	if err != nil {
		return nil, fmt.Errorf("sender %w", err)
	}
	m := &composer{sink: s.Name, from: from, userAgent: s.UserAgent, summaries: message.NewBuilder()}
	if m.templates, err = c.templateSources().Open(s); err != nil {
		return nil, err
	}
	for _, list := range []struct {
		texts []string
		into  *[]*mail.Address
	}{{c.To, &m.to}, {c.Cc, &m.cc}} {
		for _, text := range list.texts {
			a, err := parseAddress(text)
			if err != nil {
				return nil, fmt.Errorf("%q %w", relay.Truncate(text, 60), err)
			}
			*list.into = append(*list.into, a)
		}
	}
	return m, nil
}

// composeMessage returns d as a mail with the given time. Its Message-ID is the same in every attempt, so recipients
// recognize a repeat. Mails about one container or job form a thread. Errors are marked with their outcome.
func (cm *composer) composeMessage(ctx context.Context, d relay.Delivery, now time.Time) ([]byte, error) {
	if d.Digest == nil && len(d.Notifications) != 1 || len(d.Notifications) == 0 {
		return nil, relay.Permanent(
			fmt.Errorf("delivery %s has %d events and is not a digest, which a mail does not support",
				d.ID, len(d.Notifications)),
		)
	}
	c, err := cm.renderContent(ctx, d)
	if err != nil {
		return nil, err
	}
	msg := gomail.NewMsg(gomail.WithNoDefaultUserAgent(), gomail.WithBoundary("hubrelay-"+digestOf(d.ID)))
	msg.FromMailAddress(cm.from)
	msg.ToMailAddress(cm.to...)
	if len(cm.cc) > 0 {
		msg.CcMailAddress(cm.cc...)
	}
	msg.Subject(c.subject)
	msg.SetMessageIDWithValue(cm.messageID(d.ID))
	msg.SetDateWithValue(now)
	msg.SetGenHeader("Auto-Submitted", "auto-generated") // suppresses automatic replies
	if cm.userAgent != "" {
		msg.SetUserAgent(cm.userAgent)
	}
	if thread := message.ThreadOf(d); thread.Key != "" {
		root := "<" + cm.messageID("thread-"+digestOf(thread.Key)) + ">"
		msg.SetGenHeader(gomail.HeaderInReplyTo, root)
		msg.SetGenHeader(gomail.HeaderReferences, root)
	}
	msg.SetBodyString(gomail.TypeTextPlain, c.text)
	if c.html != "" {
		msg.AddAlternativeString(gomail.TypeTextHTML, c.html)
	}
	var out bytes.Buffer
	if _, err := msg.WriteTo(&out); err != nil {
		return nil, relay.Permanent(fmt.Errorf("write the mail of delivery %s: %w", d.ID, err))
	}
	return out.Bytes(), nil
}

// messageID contains the name of the sink. Otherwise a mailbox that two sinks write to would show one mail only.
func (cm *composer) messageID(id string) string {
	_, domain, _ := strings.Cut(cm.from.Address, "@")
	if strings.ContainsFunc(id,
		func(r rune) bool {
			return r > 'z' || !unicode.IsLetter(r) && !unicode.IsDigit(r) &&
				r != '-'
		}) || len(id) > 64 || id == "" {
		id = digestOf(id)
	}
	return id + "." + cm.sink + ".hubrelay@" + domain
}

func digestOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:12])
}
