package main_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hubrelay/hubrelay/internal/testkit"
)

// recipeSecrets returns the environment variables of the recipes.
func recipeSecrets() []string {
	const signing = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo="
	return []string{
		"PLATFORM_KEY=a-key-of-the-platform", "ACME_KEY=the-key-of-a-customer", "BACKEND_KEY=a-key-of-the-backend",
		"UPSTREAM_KEY=a-key-of-an-upstream", "SCRIPTS_KEY=a-key-of-our-scripts",
		"ACME_SECRET=" + signing, "GLOBEX_SECRET=" +
			signing, "GLOBEX_OLD_SECRET=whsec_AAKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=",
		"SLACK_ALERTS=https://hooks.slack.com/services/T0/B0/alerts",
		"SLACK_OPERATORS=https://hooks.slack.com/services/T0/B1/operators",
		"PAGERDUTY_KEY=0123456789abcdef0123456789abcdef", "SMTP_PASSWORD=hunter2", "SLACK_TOKEN=xoxb-0123456789-abcdef",
		"OAUTH_SECRET=hunter2", "REDIS_PASSWORD=hunter2",
	}
}

// Every recipe in docs/recipes.md is a complete and valid configuration.
func TestRecipes(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "recipes.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	recipes := regexp.MustCompile("(?s)\n## ([^\n]+)\n.*?\n```yaml\n(.*?)\n```\n").FindAllStringSubmatch(page, -1)
	if blocks := strings.Count(page, "```yaml"); len(recipes) < 10 || blocks != len(recipes) ||
		strings.Count(page, "\n## ") != blocks {
		t.Fatalf("got %d recipes in %d blocks, want at least ten with one block each", len(recipes), blocks)
	}
	plugins := t.TempDir() // the plugins check their own settings
	if err := testkit.Build(plugins, "../hubrelay-brokers", "../hubrelay-docker"); err != nil {
		t.Fatal(err)
	}
	for _, recipe := range recipes {
		t.Run(recipe[1], func(t *testing.T) {
			t.Parallel()
			dir := tempDir(t)
			tls := filepath.Join(dir, "tls")
			if err := os.Mkdir(tls, 0o700); err != nil {
				t.Fatal(err)
			}
			writeCertificate(t, tls, 1)
			inventory, err := os.ReadFile(filepath.Join("..", "..", "configs", "inventory-docker.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			writeFile(t, dir, "inventory.yaml", string(inventory))
			file := writeFile(t, dir, "hubrelay.yaml", recipe[2])
			out, errOut, code := call(t, append(recipeSecrets(), "PATH="+plugins+":"+os.Getenv("PATH")), "", "config",
				"check", "-c", file)
			if code != 0 || errOut != "" || !strings.Contains(out, " is valid: ") {
				t.Errorf("%d %s%s", code, out, errOut)
			}
		})
	}
}

// Each YAML block of the documents is one file, or a part of one that the text before it completes. Its keys exist.
func TestDocuments_YAMLBlocks(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, page := range append(pages, filepath.Join("..", "..", "README.md")) {
		if filepath.Base(page) == "recipes.md" { // TestRecipes checks whole configurations
			continue
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range yamlBlock.FindAllSubmatchIndex(text, -1) {
			file, ok := completeBlock(string(text[:at[0]]), string(text[at[2]:at[3]]))
			if !ok {
				continue
			}
			checked++
			path := writeFile(t, tempDir(t), "hubrelay.yaml", file)
			_, errOut, _ := call(t, nil, "", "config", "check", "-c", path)
			for line := range strings.Lines(errOut) {
				if strings.Contains(line, "unknown key") || strings.Contains(line, "is not valid YAML") {
					t.Errorf("%s: %s\n%s", filepath.Base(page), line, file)
				}
			}
		}
	}
	if checked < 20 {
		t.Errorf("got %d blocks, want at least 20", checked)
	}
}

var (
	yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")
	sinkType  = regexp.MustCompile(`(?m)^    type: \w+`)
)

// completeBlock returns the configuration that a block of a page is a part of. before is the text of the page before the
// block. It returns false for inventories and for files of other programs.
func completeBlock(before, block string) (file string, ok bool) {
	switch {
	case strings.HasPrefix(block, "    "): // settings of the latest sink
		types := sinkType.FindAllString(before, -1)
		return "sinks:\n  x:\n" + types[len(types)-1] + "\n" + block, true
	case strings.HasPrefix(block, "  "):
		return "sinks:\n" + block, true
	case strings.HasPrefix(block, "clusters:"), strings.HasPrefix(block, "spec:"):
		return "", false
	}
	return block, true
}
