package examples

import "testing"

// validateScript checks a document with the schema of OpenAPI 3.1 and prints its version.
const validateScript = `
import { Validator } from "@seriousme/openapi-schema-validator";
const validator = new Validator();
const result = await validator.validate(process.argv[1]);
if (!result.valid) { console.error(JSON.stringify(result.errors, null, 1)); process.exit(1); }
console.log(validator.version);`

func TestOpenAPI_IsValid(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"../relay/internal/publicapi/openapi.yaml", "../internal/adminapi/openapi.yaml"} {
		if out := run(t, nil, "node", "--input-type=module", "-e", validateScript, file); out != "3.1" {
			t.Errorf("%s: got %q, want 3.1", file, out)
		}
	}
}
