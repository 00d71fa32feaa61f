package mysqlstore_test

import (
	"testing"

	"github.com/twinhold/twinhold/internal/devstack/devtest"
	"github.com/twinhold/twinhold/reservation/storetest"
)

func TestMain(m *testing.M) {
	storetest.Child(openAgain)
	crashChild()
	devtest.Main(m, devtest.Needs{MySQL: true})
}
