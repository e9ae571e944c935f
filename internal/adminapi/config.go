package adminapi

import "time"

// Config is the configuration that a node uses.
type Config struct {
	// Node is the node that responds.
	Node string `json:"node"`
	// Text is the effective configuration as YAML, as `hubrelay config print` prints it: with the origin of each value and
	// without secrets.
	Text string `json:"text"`
	// Warning describes how it differs from the file, such as a file that was rejected. It is empty if they are equal.
	Warning string `json:"warning"`
	// Problems are the warnings about it, as `hubrelay config check` prints them.
	Problems []string `json:"problems"`
	// Versions are the newest accepted versions since the start of the node, the newest first.
	Versions []ConfigVersion `json:"versions"`
}

// ConfigVersion is a version of the configuration of a node.
type ConfigVersion struct {
	// Number counts from 1, the configuration at the start.
	Number     int       `json:"number"`
	AcceptedAt time.Time `json:"accepted_at"`
}

// ConfigText is the text of a version.
type ConfigText struct {
	Number int    `json:"number"`
	Text   string `json:"text"`
}

// ShowConfig shows the configuration of the node that responds.
func ShowConfig() Operation[Empty, Config] {
	return readOperation[Empty, Config]("config.show", "/api/config", RoleOperator, "Show the effective configuration, without its secrets")
}

// ShowConfigVersion shows an earlier version.
func ShowConfigVersion() Operation[Empty, ConfigText] {
	return readOperation[Empty, ConfigText]("config.version", "/api/config/versions/{number}", RoleOperator,
		"Show an earlier version of the configuration")
}
