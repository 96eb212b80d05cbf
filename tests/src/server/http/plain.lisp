;;;; Requests that are not gRPC: the arguments and the answer of a server's fallback, and the limits
;;;; for peers.

(in-package #:clgrpc.tests.server)

(defun tell-request (http-method path headers body)
  "A fallback that answers with its arguments."
  (values 201
          `(("X-Method" . ,http-method) ("x-path" . ,path)
            ("x-host" . ,(or (field-of "host" headers) "none"))
            ("x-asked" . ,(or (field-of "x-ask" headers) "nothing"))
            ("content-length" . "5") ("content-type" . "text/x-told"))
          body))

(defun ask-plainly (peer path &rest arguments &key (method "GET") (content-type nil)
                    &allow-other-keys)
  (apply #'ask-raw peer path :method method :content-type content-type arguments))

(defun header-of (exchange name)
  (field-of name (exchange-headers exchange)))

(defun http-status-of (exchange)
  (let ((value (header-of exchange ":status")))
    (and value (parse-integer value))))

(defun body-text (exchange)
  (octets-string (exchange-data-octets exchange)))

(defmacro with-fallback ((peer server fallback &key options events handlers) &body body)
  "Evaluate BODY with PEER a raw client of SERVER, which has FALLBACK and must serve gRPC after it."
  (let ((channel (gensym "CHANNEL")))
    `(with-probe (,channel :server ,server :options (list* :fallback ,fallback ,options)
                           :events ,events)
         (:ask #'double ,@handlers)
       (with-raw-client (,peer (grpc:server-address ,server))
         ,@body
         (is (eq :ok (status-of (ask-raw ,peer "/lab.Bench/Ask" :data (note-octets 21))))))
       (is (= 42 (number-of (ask ,channel (note 21))))))))

(test fallback-gets-requests
  "The fallback gets method, path, headers and body of requests that are not gRPC, and its answer is
sent; it gets no gRPC, and its requests do not count as gRPC's."
  (dolist (execution '(:inline :blocking :auto ((lab.bench:ask . :inline))))
    (with-fallback (peer server #'tell-request :options (list :execution execution))
      (flet ((check (body exchange &rest headers)
               (is (= 201 (http-status-of exchange)))
               (is (null (status-of exchange)))
               (is (string= "text/x-told" (header-of exchange "content-type")))
               (is (string= (format nil "~D" (length body)) (header-of exchange "content-length")))
               (loop for (name value) on headers by #'cddr
                     do (is (equal value (header-of exchange name))))
               (is (string= body (body-text exchange)))))
        (check "" (ask-plainly peer "/metrics?x=1" :fields '(("host" . "here:1")))
               "x-method" "GET" "x-path" "/metrics?x=1" "x-host" "here:1" "x-asked" "nothing")
        (check "abc" (ask-plainly peer "/lab.Bench/Ask" :method "PUT" :data (ascii-octets "abc")
                                                        :fields '(("x-ask" . "yes")))
               "x-method" "PUT" "x-asked" "yes" "x-host" "none")
        (check "{}" (ask-plainly peer "/" :method "POST" :content-type "application/json"
                                          :data (ascii-octets "{}"))
               "x-method" "POST")
        (check "" (ask-plainly peer "/" :content-type "application/grpc") "x-method" "GET")
        (let ((exchange (ask-plainly peer "/" :method "HEAD" :data (ascii-octets "12345"))))
          (is (= 201 (http-status-of exchange)))
          (is (string= "" (body-text exchange))))
        (is (zerop (getf (grpc:server-statistics server) :calls)))))))

(test cookies-of-a-request-are-one-header
  "Over HTTP/2 a browser sends each cookie in a header of its own (RFC 9113 section 8.2.3)."
  (flet ((cookies (http-method path headers body)
           (declare (ignore http-method path body))
           (values 200 '() (format nil "~{~A~^|~}" (loop for (name . value) in headers
                                                         when (string= "cookie" name)
                                                           collect value)))))
    (with-fallback (peer server #'cookies)
      (loop for (expected . sent) in '(("") ("a=b" "a=b") ("a=b; c=d; e=" "a=b" "c=d" "e="))
            for fields = (loop for cookie in sent
                               append `(("cookie" . ,cookie) ("x-between" . "1")))
            do (is (string= expected (body-text (ask-plainly peer "/" :fields fields))))))))

(test answers-of-a-fallback
  "Strings are UTF-8, octets go as they are, large ones as the windows allow; what cannot be sent is
an error of the fallback's."
  (let ((answer nil))
    (flet ((fallback (http-method path headers body)
             (declare (ignore http-method path headers body))
             (funcall answer)))
      (with-fallback (peer server #'fallback :events (:handler-error))
        (flet ((ask-for (function)
                 (setf answer function)
                 (ask-plainly peer "/")))
          (let ((exchange (ask-for (lambda () (values 200 '() "ä")))))
            (is (= 200 (http-status-of exchange)))
            (is (string= "text/plain; charset=utf-8" (header-of exchange "content-type")))
            (is (string= "ä" (body-text exchange))))
          (let ((exchange (ask-for (lambda () 204))))
            (is (= 204 (http-status-of exchange)))
            (is (null (header-of exchange "content-length"))))
          (let ((exchange (ask-for (lambda ()
                                     (values 200 '() (fill (make-octets 1000000) 7))))))
            (is (= 1000000 (length (exchange-data-octets exchange))))
            (is (every (lambda (octet) (= 7 octet)) (exchange-data-octets exchange))))
          (dolist (function (list (lambda () nil) (lambda () 99) (lambda () 101) (lambda () "200")
                                  (lambda () (values 200 '((1 . 2))))
                                  (lambda () (values 200 '((":status" . "2"))))
                                  (lambda () (values 200 '(("x y" . "2"))))
                                  (lambda () (values 200 (list (cons "x" (string #\Newline)))))
                                  (lambda () (values 200 '() 5))
                                  (lambda () (error "As asked."))))
            (let ((exchange (ask-for function)))
              (is (= 500 (http-status-of exchange)))
              (is (string= "error in handler" (body-text exchange)))))
          (is (= 10 (length (events-of :handler-error))))
          (let ((exchange (ask-for (lambda () (grpc:fail :not-found "nothing there")))))
            (is (= 404 (http-status-of exchange)))
            (is (string= "nothing there" (body-text exchange)))))))))

(test bodies-for-a-fallback-are-bounded
  "A body longer than the option says is answered with 413 at once, whatever else comes, and never
kept; nothing stays charged to the connection."
  (let ((most 0))
    (flet ((fallback (http-method path headers body)
             (declare (ignore http-method path headers))
             (setf most (max most (length body)))
             (values 200 '() body)))
      (with-fallback (peer server #'fallback :options '(:max-fallback-body-octets 100000))
        (dolist (length '(0 1 99999 100000))
          (let ((exchange (ask-plainly peer "/" :method "PUT" :data (make-octets length))))
            (is (= 200 (http-status-of exchange)))
            (is (= length (length (exchange-data-octets exchange))))))
        (dolist (length '(100001 5000000))
          (let ((exchange (ask-plainly peer "/" :method "PUT" :data (make-octets length)
                                                :end nil)))
            (is (= 413 (http-status-of exchange)))
            (await-peer peer (lambda () (exchange-reset exchange)))
            (is (eql http2:+no-error+ (exchange-reset exchange)))))
        (is (= 100000 most))
        ;; many at once, none of which ends
        (let ((exchanges (loop repeat 50
                               collect (let ((exchange (ask-plainly-begun peer)))
                                         (http2:send-data (exchange-stream exchange)
                                                          (make-octets 1000) 0 1000 nil)
                                         exchange))))
          (flush-peer peer)
          (eventually (<= 50000 (held-octets server)))
          (dolist (exchange exchanges)
            (http2:reset-stream (exchange-stream exchange) http2:+cancel+))
          (flush-peer peer))
        (eventually (zerop (held-octets server)))))))

(test a-body-is-charged-once-however-often-it-grows
  "A body that comes in parts is accepted if it is not longer than its connection may hold."
  (with-fallback (peer server (fn (_http-method _path _headers body) (values 200 '() body))
                  :options '(:max-fallback-body-octets 100000 :max-held-octets 131072
                             :max-receive-octets 65536))
    (let ((exchange (ask-plainly peer "/" :method "PUT" :data (make-octets 100000))))
      (is (= 200 (http-status-of exchange)))
      (is (= 100000 (length (exchange-data-octets exchange)))))))

(defun ask-plainly-begun (peer)
  "Begin a PUT, and do not end it."
  (send-request peer "/" :method "PUT" :content-type nil :end nil))

(test fallbacks-wait-and-fail-as-handlers-do
  "A fallback that blocks delays no other; one that runs when the server stops gets its time; a call
too many is refused; a deadline counts."
  (let ((entered (make-signal)) (go-on (make-signal)))
    (flet ((fallback (http-method path headers body)
             (declare (ignore http-method headers body))
             (when (string= "/wait" path)
               (signal-it entered)
               (await-signal go-on))
             (values 200 '() path)))
      (with-log ()
        (let ((server (start-probe (list :ask #'double) :fallback #'fallback :max-calls 20)))
          (with-raw-client (peer (grpc:server-address server))
            (let ((waiting (ask-plainly-path peer "/wait")))
              (is-true (await-signal entered))
              (is (string= "/other" (body-text (ask-plainly peer "/other"))))
              (is (eq :ok (status-of (ask-raw peer "/lab.Bench/Ask" :data (note-octets 1)))))
              (let ((begun (loop repeat 30 collect (ask-plainly-begun peer))))
                (flush-peer peer)
                (await-peer peer (lambda () (some #'http-status-of begun)))
                (is (member 429 (mapcar #'http-status-of begun)))
                (dolist (exchange begun)
                  (unless (exchange-ended exchange)
                    (http2:reset-stream (exchange-stream exchange) http2:+cancel+))))
              (is (= 504 (http-status-of (ask-plainly peer "/wait"
                                                      :fields '(("grpc-timeout" . "50m"))))))
              (let ((stopped (in-thread (grpc:stop-server server :drain 20))))
                (signal-it go-on)
                (signal-it go-on)
                (await-answer peer waiting)
                (is (string= "/wait" (body-text waiting)))
                (is (eq t (sb-thread:join-thread stopped :timeout +patience+ :default nil)))))))))))

(defun ask-plainly-path (peer path)
  (send-request peer path :method "GET" :content-type nil))

(test fallbacks-that-are-none
  (signals grpc:misuse (start-probe '() :fallback 5))
  (signals grpc:misuse (start-probe '() :fallback 'no-function-of-ours)))

(test interceptors-are-for-calls
  "Interceptors get calls only."
  (let ((seen 0))
    (flet ((intercept (call request next)
             (declare (ignore call))
             (incf seen)
             (funcall next request)))
      (with-fallback (peer server #'tell-request :options (list :interceptors (list #'intercept)))
        (is (= 201 (http-status-of (ask-plainly peer "/"))))
        (is (zerop seen)))
      (is (= 2 seen)))))
