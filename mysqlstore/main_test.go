package mysqlstore_test

import (
	"testing"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
)

func TestMain(m *testing.M) { devtest.Main(m, devtest.Needs{MySQL: true}) }
