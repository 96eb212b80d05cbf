;;;; Logs of calls: the access log, an event for each call.

(defpackage #:clgrpc.logs
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:rpc #:clgrpc.rpc) (#:status #:clgrpc.status)
                    (#:service #:clgrpc.service))
  (:import-from #:clgrpc.rpc #:call-rpc-method #:call-status #:operate)
  (:export #:access-log #:make-access-log))
