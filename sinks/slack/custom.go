package slack

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	slackgo "github.com/slack-go/slack"

	"github.com/hubrelay/hubrelay/relay"
	"github.com/hubrelay/hubrelay/relay/templates"
)

// custom is what an operator's templates make of messages. Each of them gives nil where there is none.
type custom struct{ text, blocks, link func() *templates.Template }

func (c *Config) sources() (text, blocks, link templates.Source) {
	// What a producer wrote is escaped before a template sees it: it could call the whole channel otherwise.
	texts := templates.Options{Clean: plain}
	return templates.Source{Key: "text_template", Text: c.TextTemplate, File: c.TextTemplateFile, Options: texts, Judge: judgeText},
		templates.Source{Key: "blocks_template", Text: c.BlocksTemplate, File: c.BlocksTemplateFile, Options: texts, Judge: judgeBlocks},
		templates.Source{Key: "link_template", Text: c.LinkTemplate, File: c.LinkTemplateFile, Judge: templates.JudgeLink, Single: true}
}

func (c *Config) checkTemplates() error {
	text, blocks, link := c.sources()
	return errors.Join(text.Check(), blocks.Check(), link.Check())
}

// Rehearse renders samples of what the sink would send.
func (c *Config) Rehearse(ctx context.Context, sink string, samples []relay.Delivery) error {
	text, blocks, link := c.sources()
	return errors.Join(text.Rehearse(ctx, sink, samples), blocks.Rehearse(ctx, sink, samples), link.Rehearse(ctx, sink, samples))
}

func (c *Config) openTemplates(sink relay.SinkSettings) (*custom, error) {
	text, blocks, link := c.sources()
	out := &custom{}
	var errs [3]error
	out.text, errs[0] = text.Open(sink)
	out.blocks, errs[1] = blocks.Open(sink)
	out.link, errs[2] = link.Open(sink)
	return out, errors.Join(errs[:]...)
}

func judgeText(text []byte) error {
	if strings.TrimSpace(string(text)) == "" {
		return errors.New("renders nothing, and Slack takes no message without a text: write one for every topic, or leave the topic out of topics")
	}
	return nil
}

func judgeBlocks(text []byte) error {
	_, err := blocksOf(text)
	return err
}

func blocksOf(text []byte) (*slackgo.Blocks, error) {
	if err := templates.JudgeJSON(text); err != nil {
		return nil, err
	}
	var blocks slackgo.Blocks
	if err := json.Unmarshal(text, &blocks); err != nil {
		return nil, fmt.Errorf("does not make blocks: %w; write a JSON array such as [{\"type\": \"section\", \"text\": {\"type\": \"mrkdwn\", \"text\": {{ toJson .Meaning }}}}]", err)
	}
	switch n := len(blocks.BlockSet); {
	case n == 0:
		return nil, errors.New("makes an empty list of blocks: leave the topic out of topics, or show something")
	case n > maxBlocks:
		return nil, fmt.Errorf("makes %d blocks, and Slack takes %d: bound the loop, such as by {{ if lt $i 40 }}", n, maxBlocks)
	}
	return &blocks, nil
}

// message is what is sent for d.
func (s *Sink) message(ctx context.Context, d relay.Delivery) (*slackgo.WebhookMessage, error) {
	m := s.renderer.message(d)
	text, err := s.rendered(ctx, s.custom.text(), "text_template", d, plain)
	if err != nil {
		return nil, err
	}
	blocks, err := s.rendered(ctx, s.custom.blocks(), "blocks_template", d, plain)
	if err != nil {
		return nil, err
	}
	if text != nil {
		if err := judgeText(text); err != nil {
			return nil, relay.Permanent(fmt.Errorf("text_template %w", err))
		}
		m.Text = shortened(strings.TrimSpace(string(text)), maxText, units)
		m.Blocks, m.Attachments, m.Parse = nil, nil, ""
	}
	if blocks != nil {
		set, err := blocksOf(blocks)
		if err != nil {
			return nil, relay.Permanent(fmt.Errorf("blocks_template: %w", err))
		}
		bound(set)
		m.Blocks, m.Attachments = set, nil
	}
	return m, s.addLink(ctx, m, d)
}

// addLink puts the link into a message of one notification, where its blocks are ours.
func (s *Sink) addLink(ctx context.Context, m *slackgo.WebhookMessage, d relay.Delivery) error {
	if d.Digest != nil || len(d.Notifications) != 1 {
		return nil
	}
	text, err := s.rendered(ctx, s.custom.link(), "link_template", d, nil)
	if err != nil {
		return err
	}
	if err := templates.JudgeLink(text); err != nil {
		return relay.Permanent(fmt.Errorf("link_template %w", err))
	}
	link := strings.TrimSpace(string(text))
	if n := len(m.Attachments); link != "" && n > 0 {
		last := &m.Attachments[n-1].Blocks
		last.BlockSet = append(last.BlockSet, contextLine("<"+escape(link)+"|Open>"))
	}
	return nil
}

// rendered is nil where there is no template.
func (s *Sink) rendered(ctx context.Context, t *templates.Template, key string, d relay.Delivery, clean func(string) string) ([]byte, error) {
	if t == nil {
		return nil, nil
	}
	data, err := templates.NewData(d, s.name, clean)
	if err != nil {
		return nil, relay.Permanent(err)
	}
	text, err := t.Render(ctx, data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmp.Or(key, "template"), err)
	}
	if text == nil {
		text = []byte{}
	}
	return text, nil
}
