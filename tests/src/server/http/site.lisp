;;;; Which handler is for which path, and what is no handler.

(in-package #:clgrpc.tests.server)
(in-suite :clgrpc.server)

(test handlers-and-their-paths
  "A path is the handler's that has it, else that of the longest tree it is in."
  (let ((site (server::make-site)))
    (dolist (path '("/" "/a" "/tree/" "/tree/deep/" "/tree/own"))
      (server::add-entry site (server::make-site-entry
                               (grpc:http-handler path 'tell-target)
                               (server::make-server-route :server nil))))
    (loop for (path expected) in '(("/a" "/a") ("/a/" "/") ("/tree" "/") ("/tree/" "/tree/")
                                   ("/tree/x/y" "/tree/") ("/tree/deep/x" "/tree/deep/")
                                   ("/tree/own" "/tree/own") ("/tree/own/x" "/tree/") ("/A" "/")
                                   ("*" nil))
          do (dolist (target (list path (format nil "~A?x=/tree/" path)))
               (let ((entry (server::target-entry site target)))
                 (is (equal expected
                            (and entry (server::http-handler-path
                                        (server::site-entry-handler entry))))
                     "~A" target))))
    ;; a path that is longer than any handler's is not read to its end: a peer may repeat it by an
    ;; octet
    (let ((target (format nil "/tree/own~A" (make-string 10000 :initial-element #\x)))
          (before (sb-ext:get-bytes-consed)))
      (is (string= "/tree/" (server::http-handler-path
                             (server::site-entry-handler (server::target-entry site target)))))
      (loop repeat 10 do (server::target-entry site target))
      (is (> 200000 (- (sb-ext:get-bytes-consed) before))))))

(test no-handlers
  (signals grpc:misuse (grpc:http-handler "a" 'tell-target))
  (signals grpc:misuse (grpc:http-handler "" 'tell-target))
  (signals grpc:misuse (grpc:http-handler "/a?b" 'tell-target))
  (signals grpc:misuse (grpc:http-handler "/a" 'no-such-function))
  (signals grpc:misuse (grpc:http-handler "/a" 'tell-target :methods '(:get)))
  (signals grpc:misuse (grpc:http-handler "/a" 'tell-target :methods '()))
  (signals grpc:misuse (grpc:http-handler "/a" 'tell-target :execution :soon))
  (signals grpc:misuse (grpc:start-server '() :http (list 'tell-target)))
  (signals grpc:misuse (grpc:start-server '() :http (list (grpc:http-handler "/a" 'tell-target)
                                                          (grpc:http-handler "/a" 'give-back))))
  (is (string= "#<HTTP-HANDLER GET, HEAD /a>"
               (let ((*package* (find-package '#:clgrpc.server)))
                 (princ-to-string (grpc:http-handler "/a" 'tell-target))))))
