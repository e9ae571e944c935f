package adminapi

import _ "embed"

//go:embed openapi.yaml
var openAPI string

// OpenAPI returns the description of all operations in OpenAPI 3.1, as YAML. `go test ./internal/adminapi -update`
// generates it from the types of this package.
func OpenAPI() string { return openAPI }
