;;;; `clgrpc profile`: the use of a process's time, and its waits. The samples and system calls of
;;;; perf are parsed and assigned to subsystems and phases of a call; Lisp functions have their
;;;; names from a table that each image can write of itself.

(defpackage #:clgrpc.profile
  (:use #:cl #:clgrpc.base)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:grpc #:clgrpc) (#:loop #:clgrpc.loop) (#:server #:clgrpc.server)
                    (#:page #:clgrpc.page) (#:report #:clgrpc.report) (#:os #:clgrpc.os)
                    (#:client #:clgrpc.client) (#:protobuf #:clgrpc.protobuf)
                    (#:pprof #:perftools.profiles))
  (:import-from #:clgrpc.report #:object #:mean)
  (:import-from #:clgrpc.program #:write-perf-map #:map-functions #:function-label)
  (:export
   #:write-perf-map                     ; of clgrpc.program
   ;; agent.lisp
   #:start-agent-if-asked #:take-heap-histogram #:kind-of
   ;; profile-run.lisp
   #:profile #:profile-error
   ;; profile-text.lisp
   #:write-profile #:write-missing #:read-profile
   ;; pprof.lisp
   #:write-folded #:write-pprof
   ;; profile-comparison.lisp
   #:write-difference #:difference-data
   ;; profile-page.lisp
   #:write-profile-page))
