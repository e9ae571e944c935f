package slack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	slackgo "github.com/slack-go/slack"

	"github.com/hubrelay/hubrelay/internal/tmpl"
	"github.com/hubrelay/hubrelay/relay"
)

// The settings that are templates.
const (
	textKey   = "text_template"
	blocksKey = "blocks_template"
	linkKey   = "link_template"
)

func (c *Config) templateSources() tmpl.Sources {
	// Text of producers is escaped before templates use it. Otherwise it could mention the whole channel.
	escaped := tmpl.Options{Clean: sanitizeForTemplate}
	return tmpl.Sources{
		{Key: textKey, Text: c.TextTemplate, File: c.TextTemplateFile, Options: escaped, CheckOutput: checkMessageText},
		{
			Key: blocksKey, Text: c.BlocksTemplate, File: c.BlocksTemplateFile, Options: escaped,
			CheckOutput: checkBlocks,
		},
		{Key: linkKey, Text: c.LinkTemplate, File: c.LinkTemplateFile, CheckOutput: tmpl.CheckLink, Single: true},
	}
}

// validateSamples renders sample messages of the sink.
func (c *Config) validateSamples(ctx context.Context, sink string, samples []relay.Delivery) error {
	return c.templateSources().ValidateSamples(ctx, sink, samples)
}

func checkMessageText(text []byte) error {
	if strings.TrimSpace(string(text)) == "" {
		return errors.New(
			"renders an empty text, which Slack rejects: render text for every topic, or remove the " +
				"topic from topics",
		)
	}
	return nil
}

func checkBlocks(text []byte) error {
	_, err := blocksOf(text)
	return err
}

func blocksOf(text []byte) (*slackgo.Blocks, error) {
	if err := tmpl.CheckJSON(text); err != nil {
		return nil, err
	}
	var blocks slackgo.Blocks
	if err := json.Unmarshal(text, &blocks); err != nil {
		return nil, fmt.Errorf(
			"does not render blocks: %w; render a JSON array such as [{\"type\": \"section\", \"text\": {\"type\": "+
				"\"mrkdwn\", \"text\": {{ toJson .Meaning }}}}]", err,
		)
	}
	switch n := len(blocks.BlockSet); {
	case n == 0:
		return nil, errors.New("renders an empty list of blocks: remove the topic from topics, or render a block")
	case n > maxBlocks:
		return nil, fmt.Errorf("renders %d blocks, but Slack accepts %d: limit the loop, as with {{ if lt $i 40 }}", n,
			maxBlocks)
	}
	return &blocks, nil
}

// buildMessage returns the message for d.
func (s *Sink) buildMessage(ctx context.Context, d relay.Delivery) (*slackgo.WebhookMessage, error) {
	m := s.renderer.renderDelivery(d)
	made, err := s.templates.Render(ctx, d)
	if err != nil {
		return nil, err
	}
	if text := made[textKey]; text != "" {
		m.Text = truncateMarkdown(text, maxText, utf16Len)
		m.Blocks, m.Attachments, m.Parse = nil, nil, ""
	}
	if text := made[blocksKey]; text != "" {
		set, err := blocksOf([]byte(text))
		if err != nil {
			return nil, relay.Permanent(fmt.Errorf("%s %w", blocksKey, err))
		}
		limitBlocks(set)
		m.Blocks, m.Attachments = set, nil
	}
	// Only if the blocks are our own.
	if n := len(m.Attachments); made[linkKey] != "" && n > 0 {
		last := &m.Attachments[n-1].Blocks
		last.BlockSet = append(last.BlockSet, contextLine("<"+escapeMarkup(made[linkKey])+"|Open>"))
	}
	return m, nil
}
