;;;; The handlers for paths, and objects that are no handlers.

(in-package #:clgrpc.tests.exchange)

(defun tell (request)
  "A handler that is not called."
  (declare (ignore request))
  204)

(test handlers-and-their-paths
  "A path belongs to the handler with that path, else to that of the longest tree that contains it."
  (let ((router (exchange:make-router)))
    (dolist (path '("/" "/a" "/tree/" "/tree/deep/" "/tree/own"))
      (exchange:add-handler router (exchange:http-handler path 'tell) path))
    (loop for (path expected) in '(("/a" "/a") ("/a/" "/") ("/tree" "/") ("/tree/" "/tree/")
                                   ("/tree/x/y" "/tree/") ("/tree/deep/x" "/tree/deep/")
                                   ("/tree/own" "/tree/own") ("/tree/own/x" "/tree/") ("/A" "/")
                                   ("*" nil))
          do (dolist (target (list path (format nil "~A?x=/tree/" path)))
               (is (equal expected (exchange:find-route router "GET" target)) "~A" target)
               (is (null (exchange:find-route router "PUT" target)))))
    ;; a path that is longer than any handler's is not read to its end: a peer may repeat it by an
    ;; octet
    (let ((target (format nil "/tree/own~A" (make-string 10000 :initial-element #\x)))
          (before (sb-ext:get-bytes-consed)))
      (is (string= "/tree/" (exchange:find-route router "GET" target)))
      (loop repeat 10 do (exchange:find-route router "GET" target))
      (is (> 200000 (- (sb-ext:get-bytes-consed) before))))))

(test no-handlers
  (signals misuse (exchange:http-handler "a" 'tell))
  (signals misuse (exchange:http-handler "" 'tell))
  (signals misuse (exchange:http-handler "/a?b" 'tell))
  (signals misuse (exchange:http-handler "/a" 'no-such-function))
  (signals misuse (exchange:http-handler "/a" (lambda () 204)))
  (signals misuse (exchange:http-handler "/a" 'tell :methods '(:get)))
  (signals misuse (exchange:http-handler "/a" 'tell :methods '()))
  (signals misuse (exchange:http-handler "/a" 'tell :execution :soon))
  (let ((router (exchange:make-router)) (handler (exchange:http-handler "/a" 'tell)))
    (exchange:add-handler router handler 1)
    (signals misuse (exchange:add-handler router handler 2)))
  (is (string= "#<HTTP-HANDLER GET, HEAD /a>"
               (let ((*package* (find-package '#:clgrpc.exchange)))
                 (princ-to-string (exchange:http-handler "/a" 'tell))))))

(test answers-without-a-handler
  "A path without a route gets 404, one with routes for other methods 405, which lists the methods."
  (let ((router (exchange:make-router)))
    (exchange:add-handler router (exchange:http-handler "/a" 'tell :methods '("PUT" "POST")) 1)
    (flet ((refusal (target)
             (let ((request (request-for target)))
               (exchange::find-request-route router request)
               (exchange::http-request-refusal request))))
      (is (= 404 (exchange:plain-answer-http-status (refusal "/b"))))
      (is (= 405 (exchange:plain-answer-http-status (refusal "/a"))))
      (is (equal "PUT, POST" (cdr (assoc "allow" (exchange::plain-answer-headers (refusal "/a"))
                                         :test #'string=)))))))
