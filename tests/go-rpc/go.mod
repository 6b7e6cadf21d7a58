module harvester.example/go-rpc-peer

go 1.22
