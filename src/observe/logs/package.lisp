;;;; Logs of calls: the access log, an event for each call, and the binary log, all that a call
;;;; sends and receives, for gRPC's tools.

(defpackage #:clgrpc.logs
  (:use #:cl #:clgrpc.base)
  (:local-nicknames (#:os #:clgrpc.os) (#:loop #:clgrpc.loop) (#:rpc #:clgrpc.rpc)
                    (#:encoding #:clgrpc.encoding)
                    (#:status #:clgrpc.status) (#:method #:clgrpc.method)
                    (#:protobuf #:clgrpc.protobuf) (#:binlog #:grpc.binarylog.v1))
  (:import-from #:clgrpc.rpc #:call-rpc-method #:call-status #:operate)
  (:export
   ;; access-log.lisp
   #:access-log #:make-access-log #:call-plist
   ;; binary.lisp
   #:binary-log #:make-binary-log #:close-binary-log #:rotate-binary-log
   #:binary-log-dropped #:read-binary-log))
