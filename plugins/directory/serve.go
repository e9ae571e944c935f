package directory

import "github.com/hubrelay/hubrelay/plugins/sdk"

// Serve runs the driver as a plugin until the daemon stops it.
func Serve(o Options) error { return sdk.ServeDriver(New(o)) }
