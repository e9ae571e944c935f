package main

import (
	"runtime/debug"
)

// version is set by the linker (-X main.version=v1.2.3).
var version string

// buildVersion returns the version of the release, or the version that Go recorded.
func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "devel"
	}
	return info.Main.Version
}

// moduleVersion returns the version of the module that can be downloaded. A build from a checkout that is not a
// release returns "devel".
func moduleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok && version == "" {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return "devel"
			}
		}
	}
	return buildVersion()
}
