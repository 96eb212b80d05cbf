;;;; HTTP/1.1 over sockets, octet by octet: the text a client sends, and the answer. A | is CR LF.

(in-package #:clgrpc.tests.server)

(defun wire-text (text)
  "TEXT whose | are CR LF."
  (with-output-to-string (stream)
    (loop for character across text
          do (if (char= #\| character)
                 (format stream "~C~C" #\Return #\Newline)
                 (write-char character stream)))))

(defun without-dates (text)
  "TEXT, answers of ours, with | for CR LF and without the fields that have dates."
  (let ((text (remove #\Return (substitute #\| #\Newline text))))
    (loop for start = (search "date: " text)
          while start
          do (let ((end (position #\| text :start start)))
               (setf text (concatenate 'string (subseq text 0 start) (subseq text (1+ end))))))
    text))

(defun hear-all (socket &key (seconds +patience+))
  "The text from SOCKET until its peer ends or is silent for SECONDS."
  (without-dates (map 'string #'code-char (hear-octets socket 100000000 :seconds seconds))))

(defun tell-target (request)
  (values 200 '() (grpc:http-request-target request)))

(defun give-back (request)
  (values 200 '(("content-type" . "x/y")) (grpc:http-request-body request)))

(defun web-handlers ()
  (list (grpc:http-handler "/a" 'tell-target)
        (grpc:http-handler "/b" 'tell-target)
        (grpc:http-handler "/echo" 'give-back :methods '("POST" "PUT"))
        (grpc:http-handler "/empty" (lambda (request) (declare (ignore request)) 204))
        (grpc:http-handler "/fails" (fn (_request) (grpc:fail :permission-denied "not you")))))

(defmacro with-web ((server &key (handlers '(web-handlers)) options) &body body)
  "Evaluate BODY with SERVER, which answers HTTP by HANDLERS; afterwards SERVER must hold nothing."
  `(let ((,server (start-probe (list :ask #'double) :http ,handlers ,@options)))
     (unwind-protect
          (progn ,@body
                 (eventually (zerop
                              (server::server-loop-open (first (server:server-loops
                                                                ,server)))))
                 (eventually (zerop (account-sum (server::server-account ,server)))))
       (grpc:stop-server ,server :drain 0))))

(defun answers (server text &key size (seconds +patience+))
  "The answers of SERVER to TEXT, sent in portions of SIZE, until it ends the connection."
  (with-plain-socket (socket (grpc:server-address server))
    (let ((text (wire-text text)))
      (loop for start from 0 below (length text) by (or size (length text))
            do (handler-case (say-text socket (subseq text start
                                                      (min (length text)
                                                           (+ start (or size (length text))))))
                 (sb-bsd-sockets:socket-error () (return)))))
    (hear-all socket :seconds seconds)))

(defparameter *last* "GET /b HTTP/1.1|Host: a|Connection: close||"
  "A request after which the connection ends.")

(defun plain-text (status reason body &key (fields "content-type: text/plain|") close)
  (format nil "HTTP/1.1 ~D ~A|~Acontent-length: ~D|~:[~;connection: close|~]|~A" status reason
          fields (length body) close body))

(defun ok-text (body &rest arguments)
  (apply #'plain-text 200 "OK" body :fields "content-type: text/plain; charset=utf-8|" arguments))

(test requests-over-http1
  "Requests are answered in their order, whatever their portions; a connection ends when either end
requests it."
  (with-web (server)
    (loop for (text . expected) in
          `(("GET /a?b=c HTTP/1.1|Host: a||" ,(ok-text "/a?b=c"))
            ;; pipelined
            ("GET /a HTTP/1.1|Host: a||GET /nowhere HTTP/1.1|Host: a||GET /a?2 HTTP/1.1|Host: a||"
             ,(ok-text "/a") ,(plain-text 404 "Not Found" "there is nothing here")
             ,(ok-text "/a?2"))
            ;; an empty line before a request
            ("|GET /a HTTP/1.1|Host: a||" ,(ok-text "/a"))
            ;; bodies of a length, in chunks, none
            ("POST /echo HTTP/1.1|Host: a|Content-Length: 5||hello"
             ,(plain-text 200 "OK" "hello" :fields "content-type: x/y|"))
            ("POST /echo HTTP/1.1|Host: a|Transfer-Encoding: chunked||3;x=y|abc|2|de|0|T: u||"
             ,(plain-text 200 "OK" "abcde" :fields "content-type: x/y|"))
            ("POST /echo HTTP/1.1|Host: a||"
             ,(plain-text 200 "OK" "" :fields "content-type: x/y|"))
            ;; no bodies
            ("HEAD /a HTTP/1.1|Host: a||"
             "HTTP/1.1 200 OK|content-type: text/plain; charset=utf-8|content-length: 2||")
            ("GET /empty HTTP/1.1|Host: a||" "HTTP/1.1 204 No Content||")
            ("GET /fails HTTP/1.1|Host: a||"
             ,(plain-text 403 "Forbidden" "not you"
                          :fields "content-type: text/plain; charset=utf-8|"))
            ("PUT /a HTTP/1.1|Host: a||"
             ,(plain-text 405 "Method Not Allowed" "not with this method"
                          :fields "allow: GET, HEAD|content-type: text/plain|"))
            ;; 100
            ("POST /echo HTTP/1.1|Host: a|Expect: 100-continue|Content-Length: 1||x"
             "HTTP/1.1 100 Continue||" ,(plain-text 200 "OK" "x" :fields "content-type: x/y|"))
            ;; HTTP/1.0
            ("GET /a HTTP/1.0|Connection: keep-alive||"
             "HTTP/1.1 200 OK|content-type: text/plain; charset=utf-8|content-length: 2|"
             "connection: keep-alive||/a"))
          do (dolist (size '(nil 1 7))
               (is (string= (format nil "~{~A~}~A" expected (ok-text "/b" :close t))
                            (answers server (concatenate 'string text *last*) :size size))
                   "~S in portions of ~A" text size)))
    (is (string= (ok-text "/a" :close t) (answers server "GET /a HTTP/1.0||")))
    (is (string= (ok-text "/a" :close t)
                 (answers server "GET /a HTTP/1.1|Host: a|Connection: close||GET /b"))
        "octets after the last request are ignored")))

(defun prompt-web-handlers ()
  "/a answers promptly with its query, /b like other paths; the heads of the answers of /dated,
/nothing and /unchanged cannot be written in advance."
  (flet ((fixed (&rest arguments)
           (let ((answer (apply #'exchange:fixed-answer arguments)))
             (lambda (query) (declare (ignore query)) answer))))
    (list (exchange:prompt-handler "/a" (lambda (query)
                                          (exchange:fixed-answer 200 '() (or query ""))))
          (exchange:prompt-handler "/dated" (fixed 200 '(("date" . "never")) "x"))
          (exchange:prompt-handler "/nothing" (fixed 204 '() nil))
          (exchange:prompt-handler "/unchanged" (fixed 304 '(("etag" . "x")) nil))
          (grpc:http-handler "/b" 'tell-target))))

(test prompt-handlers
  "A request that is answered as soon as it is read is answered like others, in its order, over both
versions, and does not count as a call; also if an observer sees it."
  (dolist (observer (list nil (grpc:make-observer :call-begun (lambda (call) call))))
    (with-web (server :handlers (prompt-web-handlers)
                      :options (:observer observer))
      (loop for (text . expected) in
            `(("GET /a?one HTTP/1.1|Host: a||GET /a?one HTTP/1.1|Host: a||" ,(ok-text "one")
               ,(ok-text "one"))
              ("GET /b?2 HTTP/1.1|Host: a||GET /a?3 HTTP/1.1|Host: a||GET /b?4 HTTP/1.1|Host: a||"
               ,(ok-text "/b?2") ,(ok-text "3") ,(ok-text "/b?4"))
              ("HEAD /a?one HTTP/1.1|Host: a||"
               "HTTP/1.1 200 OK|content-type: text/plain; charset=utf-8|content-length: 3||")
              ("GET /a?one HTTP/1.1|Host: a|Content-Length: 2||hi" ,(ok-text "one"))
              ("PUT /a HTTP/1.1|Host: a||"
               ,(plain-text 405 "Method Not Allowed" "not with this method"
                            :fields "allow: GET, HEAD|content-type: text/plain|"))
              ("GET /a?1.0 HTTP/1.0|Connection: keep-alive||"
               "HTTP/1.1 200 OK|content-type: text/plain; charset=utf-8|content-length: 3|"
               "connection: keep-alive||1.0")
              ("GET /nothing HTTP/1.1|Host: a||" "HTTP/1.1 204 No Content||")
              ("GET /unchanged HTTP/1.1|Host: a||" "HTTP/1.1 304 Not Modified|etag: x||"))
            do (dolist (size '(nil 1 7))
                 (is (string= (format nil "~{~A~}~A" expected (ok-text "/b" :close t))
                              (answers server (concatenate 'string text *last*) :size size))
                     "~S in portions of ~A" text size)))
      (is (string= (ok-text "x" :close t)
                   (answers server "GET /a?x HTTP/1.1|Host: a|Connection: close||")))
      (with-raw-client (peer (grpc:server-address server))
        (is (string= "two" (body-text (ask-plainly peer "/a?two"))))
        (is (= 204 (http-status-of (ask-plainly peer "/nothing")))))
      (is (zerop (nth-value
                  0 (server:server-loop-call-counts (first (server:server-loops server)))))))))

(test prompt-answers-have-the-date
  "Each answer has one date: the handler's if it gives one."
  (with-web (server :handlers (prompt-web-handlers))
    (with-plain-socket (socket (grpc:server-address server))
      (say-text socket (wire-text (format nil "GET /a HTTP/1.1|Host: a||GET /dated HTTP/1.1|~
                                               Host: a|Connection: close||")))
      (let* ((heard (map 'string #'code-char (hear-octets socket 100000)))
             (first (search "date: " heard))
             (second (search "date: " heard :start2 (1+ first))))
        (is (string= " GMT" (subseq heard (+ first 31) (+ first 35))))
        (is (eql second (search "date: never" heard)))
        (is (null (search "date: " heard :start2 (1+ second))))))))

(test prompt-answers-cons-nothing
  "A repeated head and a prepared answer allocate nothing."
  (let* ((answer (exchange:fixed-answer 200 '() "x"))
         (handler (exchange:prompt-handler "/a" (lambda (query) (declare (ignore query)) answer)))
         (request (wire-text "GET /a HTTP/1.1|Host: a||"))
         (batch (ascii-octets (format nil "~v@{~A~:*~}" 100 request)))
         (room (make-octets 100000)))
    (with-web (server :handlers (list handler))
      (with-plain-socket (socket (grpc:server-address server))
        (flet ((hear () (nth-value 1 (sb-bsd-sockets:socket-receive socket room nil))))
          (say-text socket request)
          (let ((length (hear)))
            (flet ((exchange ()
                     (sb-bsd-sockets:socket-send socket batch (length batch))
                     (loop for left = (* 100 length) then (- left (hear))
                           while (plusp left))))
              (exchange)
              (let ((before (sb-ext:get-bytes-consed)))
                (loop repeat 40 do (exchange))
                (is (> 30 (/ (- (sb-ext:get-bytes-consed) before) 4000)))))))))))

(test pipelined-requests-share-the-loop
  "Requests of one read beyond a turn's time wait for the next turn: here each takes that long."
  (let* ((turns '()) (server-loop nil)
         (answer (exchange:fixed-answer 200 '() "x"))
         (slow (exchange:prompt-handler
                "/a" (fn (_query)
                       (let ((end (+ (monotonic-ns) loop::+reading-ns+)))
                         (loop until (< end (monotonic-ns))))
                       (push (loop:event-loop-turns (server:server-loop-loop server-loop)) turns)
                       answer)))
         (request (wire-text "GET /a HTTP/1.1|Host: a||")))
    (with-web (server :handlers (list slow (grpc:http-handler "/b" 'tell-target)))
      (setf server-loop (first (server:server-loops server)))
      (is (search "/b" (answers server (format nil "~v@{~A~:*~}~*~A" 10 request *last*))))
      (is (= 10 (length turns)))
      (is (apply #'> turns) "the turns are ~A" turns))))

(test requests-that-end-a-connection
  "A request that is malformed or too long gets an error, and the connection ends; the octets after
it are not read."
  (with-web (server :options (:max-http1-head-octets 1024 :max-http1-target-octets 128
                              :max-http1-fields 5 :max-fallback-body-octets 10))
    (loop for (text status) in
          `(("hello|" 400)
            ("get|" 400)
            ("GET /a|" 400)
            ("GET /a HTTP/1.1||" 400)
            ("GET /a HTTP/2.0|Host: a||" 505)
            ("CONNECT a:1 HTTP/1.1|Host: a||" 501)
            ("POST /echo HTTP/1.1|Host: a|Content-Length: 1|Transfer-Encoding: chunked||0||" 400)
            ("POST /echo HTTP/1.1|Host: a|Transfer-Encoding: gzip, chunked||0||" 501)
            ("POST /echo HTTP/1.1|Host: a|Transfer-Encoding: chunked||x|" 400)
            ("POST /echo HTTP/1.1|Host: a|Transfer-Encoding: chunked||2|abcd|" 400)
            ("POST /echo HTTP/1.1|Host: a|Expect: wonders|Content-Length: 1||" 417)
            (,(format nil "GET /~A HTTP/1.1|Host: a||" (make-string 200 :initial-element #\a)) 414)
            (,(format nil "GET /a HTTP/1.1|Host: a|X: ~A||"
                      (make-string 1100 :initial-element #\a)) 431)
            ("GET /a HTTP/1.1|Host: a|X: y|X: y|X: y|X: y|X: y||" 431)
            ("POST /echo HTTP/1.1|Host: a|Content-Length: 11||12345678901" 413)
            ("POST /echo HTTP/1.1|Host: a|Content-Length: 11|Expect: 100-continue||" 413)
            ("POST /echo HTTP/1.1|Host: a|Transfer-Encoding: chunked||b|12345678901|0||" 413)
            ("POST /a HTTP/1.1|Host: a|Content-Length: 3||abc" 405)
            ("POST /nowhere HTTP/1.1|Host: a|Content-Length: 3|Expect: 100-continue||" 404))
          do (dolist (size '(nil 1))
               (let ((heard (answers server (concatenate 'string text *last*) :size size)))
                 (is (eql 0 (search (format nil "HTTP/1.1 ~D " status) heard)) "~S: ~S" text heard)
                 (is-true (search "|connection: close|" heard) "~S: ~S" text heard)
                 (is (null (search "HTTP/1.1 2" heard)) "~S: ~S" text heard))))))

(test bodies-over-http1
  "Long bodies arrive whole in both directions."
  (with-web (server)
    (let* ((body (make-string 1000000 :initial-element #\x))
           (heard (answers server (format nil "POST /echo HTTP/1.1|Host: a|Content-Length: ~D|~
                                               Connection: close||~A" (length body) body))))
      (is (string= body (subseq heard (- (length heard) (length body))))))))

(test both-versions-ask-the-same-handlers
  "A server has HTTP/1.1 and HTTP/2, gRPC and plain requests on one address, and a fallback."
  (with-fallback (peer server #'tell-request :options (list :http (web-handlers)))
    (is (string= "/a?x" (body-text (ask-plainly peer "/a?x"))))
    (is (= 201 (http-status-of (ask-plainly peer "/else"))))
    (is (= 405 (http-status-of (ask-plainly peer "/a" :method "PUT"))))
    (is (string= (concatenate 'string (ok-text "/a")
                              "HTTP/1.1 201 Created|x-method: GET|x-path: /else?z|x-host: here|"
                              "x-asked: nothing|content-type: text/x-told|content-length: 0|"
                              "connection: close||")
                 (answers server (format nil "GET /a HTTP/1.1|Host: a||GET /else?z HTTP/1.1|~
                                              Host: here|Connection: close||"))))))

(test servers-without-http1
  "A server that has no handlers for HTTP/1.1, or must not speak it, reports this by HTTP/2's GOAWAY
and ends the connection."
  (dolist (options (list '() (list :http (web-handlers) :http1 nil)))
    (with-started (server (apply #'start-probe (list :ask #'double) options) :drain 0)
      (is-true (search "the peer speaks HTTP/1.1"
                       (answers server "GET /a HTTP/1.1|Host: a||"))))))

(test slow-requests-over-http1
  "A head and a body have a time limit, whatever their pieces; an idle connection just ends."
  (with-web (server :options (:http1-head-timeout-seconds 0.2 :http1-body-timeout-seconds 0.2
                              :http1-idle-seconds 0.2))
    (flet ((slowly (text)
             (with-plain-socket (socket (grpc:server-address server))
               (let ((heard nil) (begin (monotonic-ns)))
                 (handler-case
                     (loop for character across (wire-text text)
                           do (say-text socket (string character))
                              (setf heard (hear-all socket :seconds 0.02))
                           until (plusp (length heard)))
                   (sb-bsd-sockets:socket-error ()))
                 (is (> 3 (ns-seconds (- (monotonic-ns) begin))))
                 (or heard "")))))
      (is (eql 0 (search "HTTP/1.1 408 " (slowly "GET /a HTTP/1.1|Host: a|X: yyyyyyyyyyyyyyyy"))))
      (is (eql 0 (search "HTTP/1.1 408 "
                         (answers server "POST /echo HTTP/1.1|Host: a|Content-Length: 5||ab"))))
      (is (eql 0 (search "HTTP/1.1 408 "
                         (answers server (format nil "POST /echo HTTP/1.1|Host: a|~
                                                      Transfer-Encoding: chunked||1|a")))))
      (is (string= (ok-text "/a") (answers server "GET /a HTTP/1.1|Host: a||")))
      (let ((heard (answers server "GET /a HTTP/1.1|Host: a||GET /a")))
        (is (eql (length (ok-text "/a")) (search "HTTP/1.1 408 " heard)))))))

(test the-last-request-of-a-connection
  (with-web (server :options (:max-http1-requests 2))
    (is (string= (concatenate 'string (ok-text "/a") (ok-text "/b" :close t))
                 (answers server (format nil "~{GET ~A HTTP/1.1|Host: a||~}" '("/a" "/b" "/a")))))))

(test servers-with-http1-that-stop
  "An idle connection ends at once, one with a request after the answer; a connection that does not
end is cut off, and its peer gets an error."
  (let ((entered (make-signal)) (go-on (make-signal)))
    (flet ((waiting (request)
             (declare (ignore request))
             (signal-it entered)
             (await-signal go-on)
             (values 200 '() "waited")))
      (let ((server (start-probe (list :ask #'double)
                                 :http (list* (grpc:http-handler "/wait" #'waiting)
                                              (web-handlers)))))
        (with-plain-socket (idle (grpc:server-address server))
          (with-plain-socket (busy (grpc:server-address server))
            (say-text idle (wire-text "GET /a HTTP/1.1|Host: a||"))
            (say-text busy (wire-text "GET /wait HTTP/1.1|Host: a||GET /a HTTP/1.1|Host: a||"))
            (await-signal entered)
            (let ((stopping (in-thread (grpc:stop-server server :drain 5))))
              (is (string= (ok-text "/a") (hear-all idle)))
              (signal-it go-on)
              (is (string= (ok-text "waited" :close t) (hear-all busy)))
              (is (eq t (sb-thread:join-thread stopping :timeout +patience+ :default nil)))))))))
  ;; an incomplete head, for which the server may wait long, does not delay a stop
  (let ((server (start-probe (list :ask #'double) :http (web-handlers)
                                                  :http1-head-timeout-seconds 1000)))
    (with-plain-socket (socket (grpc:server-address server))
      (say-text socket (wire-text "GET /a HTTP/1.1|Ho"))
      (wait-until (lambda ()
                    (some (lambda (link) (eq server::**http1** (server::server-link-protocol link)))
                          (server-links server))))
      (is (eq t (grpc:stop-server server :drain 9)))
      (is (string= "" (hear-all socket)))))
  ;; octets from which the protocol cannot be told have a second, too, and are answered
  (let ((server (start-probe (list :ask #'double) :http (web-handlers))))
    (with-plain-socket (socket (grpc:server-address server))
      (say-text socket "P")
      (wait-until (lambda ()
                    (some #'loop:connection-unread-p
                          (mapcar #'server::server-link-socket (server-links server)))))
      (let ((stopping (in-thread (grpc:stop-server server :drain 9))))
        ;; the drain has reached the link
        (wait-until (lambda ()
                      (member server::**draining-opening**
                              (mapcar #'server::server-link-protocol (server-links server)))))
        (say-text socket (wire-text "OST /echo HTTP/1.1|Host: a|Content-Length: 0||"))
        (is-true (search "connection: close" (hear-all socket)))
        (is (eq t (sb-thread:join-thread stopping :timeout +patience+ :default nil))))))
  (with-log ()
    (let* ((never (make-signal))
           (entered (make-signal))
           (server (start-probe (list :ask #'double)
                                :http (list (grpc:http-handler "/never"
                                                               (fn (_request)
                                                                 (signal-it entered)
                                                                 (await-signal never)
                                                                 204))))))
      (with-plain-socket (socket (grpc:server-address server))
        (say-text socket (wire-text "GET /never HTTP/1.1|Host: a||"))
        (await-signal entered)
        (is (null (grpc:stop-server server :drain 0.1)))
        (is (string= (plain-text 503 "Service Unavailable" "the server is stopping" :close t
                                 :fields "content-type: text/plain; charset=utf-8|")
                     (hear-all socket)))
        (signal-it never)))))

(test browsers-that-connect-ahead
  "A connection that sends nothing is closed without an answer, not with HTTP/2's."
  (with-web (server :options (:preface-timeout-seconds 0.2))
    (with-plain-socket (socket (grpc:server-address server))
      (is (string= "" (hear-all socket)))
      (eventually (zerop (getf (grpc:server-statistics server) :connections))))
    (with-plain-socket (socket (grpc:server-address server))
      (say-text socket "PRI")
      (is (search "no preface and SETTINGS in time" (hear-all socket))))))

(test peers-over-http1-that-go
  "A peer that leaves while its request is answered leaves nothing behind; its handler is notified."
  (let ((entered (make-signal)) (gone (make-signal)))
    (with-web (server :handlers (list (grpc:http-handler
                                       "/wait" (lambda (request)
                                                 (grpc:on-response-end
                                                  request (lambda () (signal-it gone)))
                                                 (signal-it entered)
                                                 request))))
      (with-plain-socket (socket (grpc:server-address server))
        (say-text socket (wire-text "GET /wait HTTP/1.1|Host: a||"))
        (await-signal entered))
      (is-true (await-signal gone)))))

(test connections-have-the-parts-of-what-they-speak
  "A connection that speaks HTTP/1.1 has no core of HTTP/2, one that speaks HTTP/2 no parser of
HTTP/1.1, and one that has sent nothing has neither."
  (with-web (server :handlers (list (grpc:http-handler "/a" 'tell-target)))
    (flet ((parts ()
             (let ((parts '()))
               (server::call-on-loops
                server
                (lambda (server-loop)
                  (server::map-links (lambda (link)
                                       (push (list (and (wire::link-http2 link) t)
                                                   (and (server::server-link-http1 link) t))
                                             parts))
                                     server-loop)))
               parts)))
      (with-plain-socket (socket (grpc:server-address server))
        (eventually (equal '((nil nil)) (parts)))
        (say-text socket (wire-text "GET /a HTTP/1.1|Host: a||"))
        (is (plusp (length (hear-octets socket 1))))
        (is (equal '((nil t)) (parts))))
      (eventually (null (parts)))
      (with-raw-client (peer (grpc:server-address server))
        (eventually (equal '((t nil)) (parts)))
        (is (= 415 (http-status-of (ask-plainly peer "/b"))))))))

(test slow-readers-keep-their-connection
  "A peer may take its answer slowly if it takes a part of it now and then; a peer that takes
nothing for :http1-send-timeout-seconds loses its connection."
  (with-server-loop (server-loop :options '(:http1-send-timeout-seconds 10)) (:ask #'double)
    (answer-http server-loop (fn (&rest _request)
                               (values 200 '() (make-string 100000 :initial-element #\a))))
    (connects server-loop)
    (let ((end memory:*end*))
      (setf (memory:end-portion end) 1000)
      (memory:say memory:*world* end (http1-head "GET"))
      (dotimes (i 5)
        (memory:passes 8)
        (setf (memory:end-news end) loop:+writable+)
        (memory:run-turns memory:*world*)
        (is (not (memory:end-closed end))))
      (memory:passes 9)
      (is (not (memory:end-closed end)))
      (memory:passes 2)
      (is-true (memory:end-closed end)))))
