// Package keystore stores API keys that operators create at run time in Redis. All nodes use them. A secret is returned
// once, and only its hash is stored.
package keystore
