;;;; Answers of HTTP that are sent in chunks over time, over both versions.

(in-package #:clgrpc.tests.server)

(defvar *begun* nil "The request whose response a test continues.")

(defun begin-events (request)
  (setf *begun* (grpc:begin-response request :headers '(("content-type" . "text/event-stream")))))

(defun events-handler ()
  (grpc:http-handler "/events" 'begin-events))

(defparameter *events-head*
  "HTTP/1.1 200 OK|content-type: text/event-stream|transfer-encoding: chunked||")

(test responses-in-chunks
  "Chunks are sent at once; the connection continues after the last."
  (with-web (server :handlers (cons (events-handler) (web-handlers)))
    (with-plain-socket (socket (grpc:server-address server))
      (setf *begun* nil)
      (say-text socket (wire-text "GET /events HTTP/1.1|Host: a||GET /a HTTP/1.1|Host: a||"))
      (eventually *begun*)
      (is-true (grpc:response-open-p *begun*))
      (is (string= *events-head* (hear-all socket :seconds 0.1)))
      (is (eq t (grpc:send-chunk *begun* "one")))
      (is (string= "3|one|" (hear-all socket :seconds 0.1)))
      (is (eq t (grpc:send-chunk *begun* "")))
      (is (eq t (grpc:send-chunk *begun* (ascii-octets "twenty octets of text"))))
      (grpc:end-response *begun*)
      (grpc:end-response *begun*)
      (is (string= (concatenate 'string "15|twenty octets of text|0||" (ok-text "/a"))
                   (hear-all socket :seconds 0.3)))
      (is (null (grpc:response-open-p *begun*)))
      (is (null (grpc:send-chunk *begun* "late"))))
    ;; HTTP/1.0 has no chunks
    (with-plain-socket (socket (grpc:server-address server))
      (setf *begun* nil)
      (say-text socket (wire-text "GET /events HTTP/1.0|Connection: keep-alive||"))
      (eventually *begun*)
      (grpc:send-chunk *begun* "one")
      (grpc:end-response *begun*)
      (is (string= "HTTP/1.1 200 OK|content-type: text/event-stream|connection: close||one"
                   (hear-all socket))))
    (with-plain-socket (socket (grpc:server-address server))
      (setf *begun* nil)
      (say-text socket (wire-text (format nil "HEAD /events HTTP/1.1|Host: a||~A" *last*)))
      (eventually *begun*)
      (grpc:send-chunk *begun* "one")
      (grpc:end-response *begun*)
      (is (string= (concatenate 'string *events-head* (ok-text "/b" :close t))
                   (hear-all socket))))))

(test responses-in-chunks-over-http2
  (with-fallback (peer server #'tell-request :options (list :http (list (events-handler))))
    (setf *begun* nil)
    (let ((exchange (send-request peer "/events" :method "GET" :content-type nil)))
      (is-true (await-peer peer (lambda () (exchange-headers exchange))))
      (is (string= "text/event-stream" (header-of exchange "content-type")))
      (is (null (header-of exchange "content-length")))
      (grpc:send-chunk *begun* "one")
      (is-true (await-peer peer (lambda () (= 3 (length (exchange-data-octets exchange))))))
      (grpc:send-chunk *begun* "two")
      (grpc:end-response *begun*)
      (is-true (await-peer peer (lambda () (exchange-ended exchange))))
      (is (string= "onetwo" (body-text exchange)))
      (is (null (exchange-reset exchange))))))

(test octets-that-are-used-again
  "Octets are sent as they were, whatever the handler does with its vector while they wait."
  (with-fallback (peer server #'tell-request :options (list :http (list (events-handler))))
    (setf *begun* nil)
    (let ((exchange (send-request peer "/events" :method "GET" :content-type nil))
          (chunk (make-array 100000 :element-type '(unsigned-byte 8) :initial-element 1)))
      (is-true (await-peer peer (lambda () (exchange-headers exchange))))
      (let ((held (make-signal)) (go (make-signal)) (loops (server:server-loops server)))
        ;; the loops get to the chunk only after it has changed
        (dolist (server-loop loops)
          (loop:post (server:server-loop-loop server-loop)
                     (lambda () (signal-it held) (await-signal go))))
        (is-true (await-signal held :count (length loops)))
        (is-true (grpc:send-chunk *begun* chunk)) ; more than the window
        (fill chunk 2)
        (loop repeat (length loops) do (signal-it go)))
      (grpc:end-response *begun*)
      (is-true (await-peer peer (lambda () (exchange-ended exchange))))
      (is (= 100000 (length (exchange-data-octets exchange))))
      (is (every (lambda (octet) (= 1 octet)) (exchange-data-octets exchange))))))

(defun refuse-early-parts (request)
  "Signal an error unless no chunk and no end can be sent before the beginning of REQUEST's
response."
  (dolist (function (list #'grpc:end-response
                          (lambda (request) (grpc:send-chunk request "early"))))
    (handler-case (progn (funcall function request) (error "~A was allowed." function))
      (grpc:misuse ()))))

(test responses-end-with-their-handler
  "A handler that returns another value than its request ends its response; a handler that fails
cuts it off, so that it does not look whole."
  (with-log (:handler-error)
    (with-web (server :handlers (list (grpc:http-handler
                                       "/whole" (lambda (request)
                                                  (grpc:begin-response request)
                                                  (grpc:send-chunk request "a")
                                                  nil))
                                      (grpc:http-handler
                                       "/cut" (lambda (request)
                                                (grpc:begin-response request)
                                                (grpc:send-chunk request "a")
                                                (error "As asked.")))
                                      (grpc:http-handler
                                       "/twice" (lambda (request)
                                                  (refuse-early-parts request)
                                                  (grpc:begin-response request)
                                                  (handler-case (grpc:begin-response request)
                                                    (grpc:misuse ()
                                                      (grpc:send-chunk request "misuse")))
                                                  nil))))
      (let ((head "HTTP/1.1 200 OK|transfer-encoding: chunked|connection: close||"))
        (flet ((ask-for (path)
                 (answers server (format nil "GET ~A HTTP/1.1|Host: a|Connection: close||" path))))
          (is (string= (concatenate 'string head "1|a|0||") (ask-for "/whole")))
          (is (string= (concatenate 'string head "6|misuse|0||") (ask-for "/twice")))
          (is (null (search "0||" (ask-for "/cut")))))))))

(test responses-are-not-overtaken
  "The head, chunks and the end of a response leave in the order in which the threads of a handler
on the loop have sent them."
  (let ((handlers (list (lambda (request)
                          (elsewhere (grpc:begin-response request))
                          (grpc:send-chunk request "a")
                          (elsewhere (grpc:send-chunk request "b"))
                          (grpc:send-chunk request "c")
                          (elsewhere (grpc:send-chunk request "d"))
                          nil)
                        (lambda (request)
                          (elsewhere (grpc:begin-response request)
                                     (dolist (text '("a" "b" "c" "d"))
                                       (grpc:send-chunk request text)))
                          (grpc:end-response request)
                          request))))
    (dolist (handler handlers)
      (with-web (server :handlers (list (grpc:http-handler "/" handler :execution :inline)))
        (loop repeat 20
              do (is (string= (concatenate 'string "HTTP/1.1 200 OK|transfer-encoding: chunked|"
                                           "connection: close||1|a|1|b|1|c|1|d|0||")
                              (answers server (format nil "GET / HTTP/1.1|Host: a|~
                                                           Connection: close||")))))))))

(defun drain-socket (socket &key (seconds +patience+))
  "Read from SOCKET until its peer ends or is silent for SECONDS; return the number of octets."
  (loop with area = (make-octets 1000000)
        while (sb-sys:wait-until-fd-usable (sb-bsd-sockets:socket-file-descriptor socket) :input
                                           seconds nil)
        for count = (nth-value 1 (sb-bsd-sockets:socket-receive socket area nil))
        while (plusp count) sum count))

(test peers-that-take-no-chunks
  "The octets that wait for a slow peer are bounded; then chunks are refused until some leave."
  (with-web (server :handlers (list (events-handler)) :options (:send-budget-octets 65536))
    (with-plain-socket (socket (grpc:server-address server))
      (setf *begun* nil)
      (say-text socket (wire-text "GET /events HTTP/1.1|Host: a|Connection: close||"))
      (eventually *begun*)
      (let ((connection (wire::link-socket (wire::wire-call-link
                                           (exchange:http-request-context *begun*))))
            (chunk (make-octets 30000))
            (sent 0))
        (flet ((send-all ()
                 (loop while (grpc:send-chunk *begun* chunk) do (incf sent))))
          (is-true (wait-until (lambda ()
                                 (send-all)
                                 (loop::connection-blocked connection))))
          (is-true (wait-until (lambda ()
                                 (send-all)
                                 (< 30000 (loop:connection-unsent connection)))))
          (is (null (grpc:send-chunk *begun* chunk)))
          (is (>= 200000 (loop:connection-unsent connection)))
          (is (plusp (drain-socket socket :seconds 0.1)))
          (eventually (grpc:send-chunk *begun* chunk))
          (grpc:end-response *begun*)
          (is (plusp (drain-socket socket))))))))

(defun read-octets-of (socket count)
  "Read COUNT octets from SOCKET; return true if they have arrived."
  (loop with area = (make-octets 100000)
        while (plusp count)
        do (unless (sb-sys:wait-until-fd-usable (sb-bsd-sockets:socket-file-descriptor socket)
                                                :input +patience+ nil)
             (return nil))
           (decf count (nth-value 1 (sb-bsd-sockets:socket-receive socket area
                                                                   (min count 100000))))
        finally (return t)))

(test requests-that-wait-for-output-are-answered
  "A peer that reads late sends many requests at once: all are answered, despite the limit."
  (let ((count 4000))
    (with-web (server :options (:max-unsent-octets 16384)
                      :handlers (list (grpc:http-handler "/" 'tell-target :execution :inline)))
      (with-plain-socket (socket (grpc:server-address server))
        (let ((sender (in-thread (let ((text (wire-text "GET /0123456789 HTTP/1.1|Host: a||")))
                                   (dotimes (i (/ count 100))
                                     (say-text socket (format nil "~V@{~A~:*~}" 100 text)))
                                   (say-text socket (wire-text *last*))))))
          (eventually (or (not (sb-thread:thread-alive-p sender))
                          (loop for link in (server-links server)
                                thereis (server::output-waits-p link))))
          (let ((heard (map 'string #'code-char (hear-octets socket 100000000))))
            (is (= (1+ count)
                   (loop for at = (search "HTTP/1.1 200 OK" heard)
                           then (search "HTTP/1.1 200 OK" heard :start2 (1+ at))
                         while at count t))))
          (sb-thread:join-thread sender :timeout 60))))))

(test chunks-that-have-left-wait-for-nobody
  "A peer that has taken everything gets a chunk of any size, whatever was sent before."
  (flet ((refused (takenp)
           "The first size that SEND-CHUNK refuses though TAKENP was true of all octets before it."
           (loop for size in '(100 200000 100 100 1000000 100)
                 for sum = size then (+ sum size)
                 ;; the peer may have octets before the loop knows that they have left
                 unless (and (wait-until (lambda ()
                                           (grpc:send-chunk *begun* (make-octets size))))
                             (funcall takenp size sum))
                   return size)))
    (with-web (server :handlers (list (events-handler)))
      (with-plain-socket (socket (grpc:server-address server))
        (setf *begun* nil)
        (say-text socket (wire-text "GET /events HTTP/1.0||"))
        (eventually *begun*)
        (hear-all socket :seconds 0.1)
        (is (null (refused (fn (size _sum) (read-octets-of socket size)))))))
    (with-fallback (peer server #'tell-request :options (list :http (list (events-handler))))
      (setf *begun* nil)
      (let ((exchange (send-request peer "/events" :method "GET" :content-type nil)))
        (is-true (await-peer peer (lambda () (exchange-headers exchange))))
        (is (null (refused (fn (_size sum)
                             (await-peer peer (lambda ()
                                                (= sum (length (exchange-data-octets
                                                                exchange)))))))))))))

(test responses-end-with-the-server
  "A server that stops ends responses at once, as whole ones."
  (dolist (http2 '(nil t))
    (let ((server (start-probe (list :ask #'double) :http (list (events-handler))))
          (ended (make-signal)))
      (setf *begun* nil)
      (flet ((stop ()
               (eventually *begun*)
               (grpc:on-response-end *begun* (lambda () (signal-it ended)))
               (in-thread (grpc:stop-server server :drain 30))))
        (if http2
            (with-raw-client (peer (grpc:server-address server))
              (let ((exchange (send-request peer "/events" :method "GET" :content-type nil)))
                (is-true (await-peer peer (lambda () (exchange-headers exchange))))
                (let ((stopping (stop)))
                  (is-true (await-peer peer (lambda () (exchange-ended exchange))))
                  (is (null (exchange-reset exchange)))
                  (await-peer peer (lambda () (peer-closed peer)))
                  (is (eq t (sb-thread:join-thread stopping :timeout 5 :default nil))))))
            (with-plain-socket (socket (grpc:server-address server))
              (say-text socket (wire-text "GET /events HTTP/1.1|Host: a||"))
              (let ((stopping (stop)))
                (is (string= (concatenate 'string *events-head* "0||") (hear-all socket)))
                (is (eq t (sb-thread:join-thread stopping :timeout 5 :default nil)))))))
      (is-true (await-signal ended)))))

(test responses-that-begin-while-the-server-stops
  "They end when their handlers return, with the chunks sent until then."
  (dolist (http2 '(nil t))
    (let* ((running (make-signal)) (go-on (make-signal))
           (server (start-probe (list :ask #'double)
                                :http (list (grpc:http-handler
                                             "/events" (lambda (request)
                                                         (signal-it running)
                                                         (await-signal go-on)
                                                         (begin-events request)
                                                         (grpc:send-chunk request "a")
                                                         request))))))
      (flet ((stop ()
               (is-true (await-signal running))
               (let ((stopper (in-thread (grpc:stop-server server :drain 30))))
                 (eventually (let ((link (first (server-links server))))
                               (if http2
                                   (server::permit-drain (server::server-link-permit link))
                                   (exchange::state-last (server::server-link-http1 link)))))
                 (signal-it go-on)
                 stopper)))
        (if http2
            (with-raw-client (peer (grpc:server-address server))
              (let ((exchange (send-request peer "/events" :method "GET" :content-type nil)))
                (flush-peer peer)
                (let ((stopping (stop)))
                  (is-true (await-peer peer (lambda () (exchange-ended exchange))))
                  (await-peer peer (lambda () (peer-closed peer)))
                  (is (eq t (sb-thread:join-thread stopping :timeout 10 :default nil))))))
            (with-plain-socket (socket (grpc:server-address server))
              (say-text socket (wire-text "GET /events HTTP/1.1|Host: a||"))
              (let ((stopping (stop)))
                (is-true (search "|1|a|0||" (hear-all socket)))
                (is (eq t (sb-thread:join-thread stopping :timeout 10 :default nil))))))))))

(test responses-on-old-connections
  "They continue until the grace is over, over both versions; then they end with the connection."
  (dolist (http2 '(nil t))
    (with-server-loop (server-loop :options '(:max-connection-age-seconds 100
                                              :max-connection-age-grace-seconds 100))
        (:ask #'double)
      (let ((server (server::server-loop-server server-loop)))
        (setf (server::server-loop-http server-loop)
              (server::make-server-loop-http
               server (server::make-server-router server (list (events-handler)) nil :inline))
              *begun* nil))
      (cond (http2
             (comes server-loop)
             (memory:hears '(:headers 1 ((":method" "GET") (":scheme" "http") (":path" "/events"))
                             :end-stream)))
            (t (connects server-loop)
               (memory:say memory:*world* memory:*end*
                           (map 'octets #'char-code
                                (wire-text "GET /events HTTP/1.1|Host: a||")))))
      (memory:passes 115)
      (is-true (grpc:response-open-p *begun*))
      (is-true (memory:call-in-world memory:*world* (lambda () (grpc:send-chunk *begun* "one"))))
      (is-true (search (ascii-octets "one") (memory:take-said memory:*end*)))
      (memory:passes 100)
      (is (null (grpc:response-open-p *begun*)))
      (is-true (memory:end-shut memory:*end*)))))

(test responses-without-a-body-end-with-their-head
  "The response to a HEAD, or with the status 204, over both versions; over HTTP/1.1 the next request
is answered."
  (loop for (http-method status) in '(("HEAD" 200) ("GET" 204))
        do (let ((ended (make-signal)))
             (with-fallback (peer server #'tell-request
                                  :options (list :http (list (grpc:http-handler
                                                              "/events"
                                                              (lambda (request)
                                                                (grpc:on-response-end
                                                                 request
                                                                 (lambda () (signal-it ended)))
                                                                (grpc:begin-response
                                                                 request :status status))))))
               (let ((exchange (ask-raw peer "/events" :method http-method :content-type nil)))
                 (is (= status (http-status-of exchange)))
                 (is-true (await-signal ended)))
               (with-plain-socket (socket (grpc:server-address server))
                 (say-text socket (wire-text (format nil "~A /events HTTP/1.1|Host: a||~A"
                                                     http-method *last*)))
                 (is (search "201" (hear-all socket)))
                 (is-true (await-signal ended)))))))
