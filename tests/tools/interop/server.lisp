;;;; grpc-go's client against our server: each scenario of `peer scenario-client` plays against a
;;;; server of its own, which must then hold no more descriptors than before, and end well when
;;;; asked to.

(in-package #:clgrpc.tests.interop)

(defun complaints (lines)
  "The lines of a peer's report that are not `ok`."
  (remove-if (lambda (line) (uiop:string-prefix-p "ok " line)) lines))

(defun check-descriptors (server before)
  "Check that SERVER comes back to BEFORE open descriptors once its peers are gone."
  ;; another process tells nobody when it closes a socket, so this has to look again and again
  (let ((now (loop for now = (os:open-descriptor-count (program-pid server))
                   repeat 200
                   until (<= now before)
                   do (sb-thread:thread-yield)
                      (sleep 0.01)
                   finally (return now))))
    (is (<= now before) "The server has ~D descriptors open, ~D before" now before)))

(defun play-against-us (peer services arguments &key killed (listen "127.0.0.1:0"))
  "Run `PEER ARGUMENTS… ADDRESS` against our server of SERVICES at LISTEN and check both. KILLED
says that the peer gets the server's process id and kills it."
  (with-server-program (server address (testee-program) "serve" services "--listen" listen
                               "--max-receive-octets" (princ-to-string *max-receive-octets*))
    (let ((before (os:open-descriptor-count (program-pid server))))
      (multiple-value-bind (code lines)
          (run-to-end peer (append (butlast arguments)
                                   (when killed
                                     (list "-kill" (princ-to-string (program-pid server))))
                                   (last arguments)
                                   (list address)))
        (is (eql 0 code) "exit code ~D:~{ ~A~}" code (complaints lines)))
      (unless killed
        (check-descriptors server before)
        (is (eql 0 (terminate-program server)) "The server did not end well after SIGTERM")))))

(defun play-scenario (name &key killed)
  (let ((peer (need-peer)))
    (play-against-us peer "greeter,route-guide,interop"
                     (list "scenario-client" "-max-receive-octets"
                           (princ-to-string *max-receive-octets*) name)
                     :killed killed)))

(defmacro define-scenarios (&rest names)
  "Define a test for each of the scenarios NAMES of `peer scenario-client`."
  `(progn
     ,@(loop for name in names
             collect `(test ,(intern (format nil "GO-CLIENT-~:@(~A~)" name))
                        (play-scenario ,name)))))

(define-scenarios
  "stream-down" "stream-up" "stream-both" "stream-ping-pong" "route-10000"
  "message-0" "message-1m" "message-16m"
  "calls-100" "connections-100" "sleeper" "client-cancels" "deadline" "server-deadline" "status"
  "not-grpc" "unknown" "message-too-long" "message-truncated" "prefix-4g" "garbage" "compression"
  "health" "reflection")

(test go-client-server-killed
  (play-scenario "server-killed" :killed t))

(test every-scenario-is-played
  (let ((peer (need-peer)))
    (loop for line in (nth-value 1 (run-to-end peer '("scenario-client" "list")))
          for name = (subseq line 0 (position #\Space line))
          do (is-true (get-test (find-symbol (format nil "GO-CLIENT-~:@(~A~)" name)
                                             '#:clgrpc.tests.interop))
                      "The scenario ~A has no test" name))))

(test go-route-guide-client
  (let ((peer (need-peer)))
    (play-against-us peer "route-guide" (list "routeguide-client"))))

;;; Unix sockets

(defun free-unix-path ()
  (uiop:with-temporary-file (:pathname path :type "sock")
    (uiop:native-namestring path)))

(test go-client-over-unix-sockets
  (let ((peer (need-peer)))
    (let ((path (free-unix-path)))
      (dolist (listen (list (format nil "unix:~A" path)
                            (format nil "unix-abstract:~A" (pathname-name path))))
        (play-against-us peer "greeter,route-guide,interop"
                         (list "scenario-client" "stream-both" "message-1m" "calls-100"
                               "client-cancels")
                         :listen listen)
        (is (null (probe-file path)))))))
