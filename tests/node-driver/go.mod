module harvester.example/node-driver-peer

go 1.22
