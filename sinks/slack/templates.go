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

// The settings that templates have.
const (
	textKey   = "text_template"
	blocksKey = "blocks_template"
	linkKey   = "link_template"
)

func (c *Config) templateSources() tmpl.Sources {
	// Text of producers is escaped before a template sees it. Otherwise it could mention the whole channel.
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

// validateSamples renders samples of the sink's messages.
func (c *Config) validateSamples(ctx context.Context, sink string, samples []relay.Delivery) error {
	return c.templateSources().ValidateSamples(ctx, sink, samples)
}

func checkMessageText(text []byte) error {
	if strings.TrimSpace(string(text)) == "" {
		return errors.New(
			"renders nothing, and Slack takes no message without a text: write one for every topic, or leave the " +
				"topic out of topics",
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
			"does not make blocks: %w; write a JSON array such as [{\"type\": \"section\", \"text\": {\"type\": "+
				"\"mrkdwn\", \"text\": {{ toJson .Meaning }}}}]", err,
		)
	}
	switch n := len(blocks.BlockSet); {
	case n == 0:
		return nil, errors.New("makes an empty list of blocks: leave the topic out of topics, or show something")
	case n > maxBlocks:
		return nil, fmt.Errorf("makes %d blocks, and Slack takes %d: bound the loop, such as by {{ if lt $i 40 }}", n,
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
	// Only below blocks that are ours.
	if n := len(m.Attachments); made[linkKey] != "" && n > 0 {
		last := &m.Attachments[n-1].Blocks
		last.BlockSet = append(last.BlockSet, contextLine("<"+escapeMarkup(made[linkKey])+"|Open>"))
	}
	return m, nil
}
