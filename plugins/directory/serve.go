package directory

import "github.com/hubrelay/hubrelay/plugins/sdk"

// Serve runs the driver as a plugin until the daemon has no more use for it.
func Serve(o Options) error { return sdk.ServeDriver(New(o)) }
