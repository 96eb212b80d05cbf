;;;; The console: a page for the browser, served by the process itself, that shows its present calls
;;;; and counts. The files, each of which uses only those before it: the calls that are kept; the
;;;; last events of the log; the console, which makes observers; updates, the changes of a second;
;;;; viewers; access; the page; the option of command lines.

(defpackage #:clgrpc.console
  (:use #:cl #:clgrpc.base #:clgrpc.option)
  (:import-from #:alexandria #:if-let #:when-let)
  (:local-nicknames (#:loop #:clgrpc.loop) (#:rpc #:clgrpc.rpc) (#:serving #:clgrpc.serving)
                    (#:server #:clgrpc.server) (#:exchange #:clgrpc.exchange)
                    (#:metrics #:clgrpc.metrics)
                    (#:logs #:clgrpc.logs) (#:command #:clgrpc.command)
                    (#:program #:clgrpc.program))
  (:import-from #:sb-ext #:defglobal #:define-load-time-global)
  (:import-from #:clgrpc.rpc #:call-status #:operate)
  (:export
   ;; console.lisp
   #:console #:make-console #:console-metrics
   ;; access.lisp
   #:loopback-address-p
   ;; console-page.lisp, access.lisp: for pages of other systems
   #:add-page #:page-parts #:send-page #:send-json #:refuse
   ;; console-page.lisp
   #:console-handler #:console-url
   ;; console-option.lisp
   #:call-with-console))
