package config_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hubrelay/hubrelay/relay/internal/config"
)

func ExampleLoad() {
	dir, err := os.MkdirTemp("", "hubrelay")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "hubrelay.yaml")
	text := `server:
  listn: 0.0.0.0:8080
auth:
  keys:
    - {name: ops, key: 0123456789abcdef, hub: ["*"]}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	_, err = config.Load(file, os.Environ(), config.Kinds{})
	fmt.Println(strings.ReplaceAll(err.Error(), dir+string(filepath.Separator), ""))
	// Output:
	// hubrelay.yaml:2:3: server.listn: unknown key; did you mean "listen"?
	// hubrelay.yaml:5:42: auth.keys[0].hub: unknown key; did you mean "hubs"?
}

func ExampleParseSize() {
	size, err := config.ParseSize("64KiB")
	fmt.Println(int64(size), size, err)
	// Output: 65536 64KiB <nil>
}
