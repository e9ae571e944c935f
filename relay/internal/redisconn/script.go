package redisconn

import (
	"crypto/fips140"

	"github.com/redis/go-redis/v9"
)

// NewScript returns a script that is called by its SHA-1. Redis identifies scripts that way. Because this is not a security
// function, NewScript also works with GODEBUG=fips140=only, which forbids SHA-1.
func NewScript(source string) *redis.Script {
	var script *redis.Script
	fips140.WithoutEnforcement(func() { script = redis.NewScript(source) })
	return script
}
