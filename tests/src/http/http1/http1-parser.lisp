;;;; The parser as a whole: the end of the connection, repeated heads, and random octets, for which
;;;; only HTTP1-ERROR may be signalled, the same error for all portions.

(in-package #:clgrpc.tests.http1)

(test connections-end-between-messages
  (flet ((end (text &key (role :server) requests)
           (let ((parser (make-parser role)))
             (dolist (request requests) (expect-response parser request))
             (feed parser (wire text))
             (handler-case (parse-end parser)
               (http1-error () :error)))))
    (is (null (end "")))
    (is (null (end "GET / HTTP/1.1|Host: a||")))
    (is (eq :error (end "GET / HT")))
    (is (eq :error (end "POST / HTTP/1.1|Host: a|Content-Length: 2||x")))
    (is (eq :error (end "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||1|x|")))
    (is (eq :error (end "POST / HTTP/1.1|Host: a|Transfer-Encoding: chunked||0|")))
    (is (eq :end (end "HTTP/1.1 200 OK||some" :role :client :requests '("GET"))))
    (is (eq :error (end "HTTP/1.1 200 OK|Content-Length: 9||some"
                        :role :client :requests '("GET"))))))

(test a-message-at-a-time
  (let* ((parser (make-parser :server))
         (octets (wire "GET /a HTTP/1.1|Host: a||GET /b HTTP/1.1|Host: a||"))
         (at 0))
    (flet ((next ()
             (multiple-value-bind (next event) (parse parser octets at (length octets))
               (setf at next)
               event)))
      (is (eq :head (next)))
      (is (eq :end (next)))
      (is (null (next)) "the second message waits until it is asked for")
      (is (< at (length octets)))
      (next-message parser)
      (is (eq :head (next)))
      (is (equal "/b" (message-target (parser-message parser)))))))

(test a-message-prints-without-its-query
  (let* ((parser (make-parser :server)) (octets (wire "GET /a?token=hunter2 HTTP/1.1|Host: a||")))
    (parse parser octets 0 (length octets))
    (let ((text (princ-to-string (parser-message parser))))
      (is (search "GET /a," text))
      (is (null (search "hunter2" text))))))

(test a-repeated-head-is-the-same-message
  (let ((parser (make-parser :server))
        (octets (wire "GET /a HTTP/1.1|Host: a||")))
    (feed parser octets)
    (let ((message (parser-message parser)))
      (setf (message-memo message) :noted)
      (feed parser octets)
      (is (eq message (parser-message parser)))
      (is (eq :noted (message-memo (parser-message parser))))
      (feed parser (wire "GET /b HTTP/1.1|Host: a||"))
      (is (null (message-memo (parser-message parser))))))
  ;; the same head is another response to another request
  (is (equal '((200 "OK" ("content-length: 1") 0 t) :end (200 "OK" ("content-length: 1") 1 t) "x"
               :end)
             (said "HTTP/1.1 200 OK|Content-Length: 1||HTTP/1.1 200 OK|Content-Length: 1||x"
                   :role :client :requests '("HEAD" "GET")))))

(test repeated-heads-in-any-portions
  "A repeated head is read like the first, with its body; a head that only begins like it is
different."
  (let ((post '("POST" "/x" (":authority: a" "content-length: 2") 2 t))
        (get '("GET" "/x" (":authority: a") 0 t))
        (other '("GET" "/x" (":authority: a" "b: c") 0 t)))
    (is-said (list post "hi" :end post "ho" :end get :end get :end post "hi" :end)
             (concatenate 'string
                          "POST /x HTTP/1.1|Host: a|Content-Length: 2||hi"
                          "POST /x HTTP/1.1|Host: a|Content-Length: 2||ho"
                          "GET /x HTTP/1.1|Host: a||GET /x HTTP/1.1|Host: a||"
                          "POST /x HTTP/1.1|Host: a|Content-Length: 2||hi"))
    (is-said (list get :end other :end get :end)
             (concatenate 'string "GET /x HTTP/1.1|Host: a||GET /x HTTP/1.1|Host: a|B: c||"
                          "GET /x HTTP/1.1|Host: a||"))
    (is (eql 400 (status-of (format nil "GET /x HTTP/1.1|Host: a||GET /x HTTP/1.1|Host: a|~C|"
                                    (code-char 10)))))
    (is (eql 400 (status-of "GET /x HTTP/1.1|Host: a||GET /x HTTP/1.1||")))))

(defparameter *seeds*
  '("GET / HTTP/1.1|Host: a|Accept: */*||"
    "POST /x HTTP/1.1|Host: a|Content-Length: 5||hello"
    "POST /x HTTP/1.1|Host: a|Transfer-Encoding: chunked||5;x=y|hello|0|T: u||"
    "HTTP/1.1 200 OK|Content-Length: 2||hi"
    "HTTP/1.1 100 x||HTTP/1.1 200 OK|Transfer-Encoding: chunked||1|x|0||")
  "Messages that random ones are made from.")

(defun mutated (octets)
  "OCTETS with some of them changed, doubled or omitted."
  (let ((octets (copy-seq octets)))
    (loop repeat (random 4)
          do (let ((at (random (length octets))))
               (case (random 3)
                 (0 (setf (aref octets at)
                          (aref #.(coerce '(13 10 32 9 58 48 49 59 44 0 255 97) 'octets)
                                (random 12))))
                 (1 (setf octets (concatenate 'octets (subseq octets 0 at)
                                              (subseq octets (max 0 (- at (random 9)))))))
                 (2 (setf octets (concatenate 'octets (subseq octets 0 at)
                                              (subseq octets (min (length octets)
                                                                  (+ at (random 5))))))))
               (when (zerop (length octets)) (setf octets (wire "|")))))
    octets))

(defun outcome (octets size)
  "The results of parsers of both roles for OCTETS in portions of SIZE."
  (loop for role in '(:server :client)
        collect (let ((parser (make-parser role)) (events '()))
                  (expect-response parser "GET")
                  (expect-response parser "HEAD")
                  (handler-case
                      (dolist (portion (portions octets size))
                        (map-events (lambda (event) (push event events)) parser portion))
                    (http1-error (error) (push (http1-error-status error) events)))
                  (nreverse events))))

(test random-octets-are-read-alike-in-any-portions
  (let* ((seed (random (expt 2 32) (make-random-state t)))
         (*random-state* (sb-ext:seed-random-state seed))
         (good 0))
    (loop repeat 3000
          do (let* ((octets (mutated (wire (nth (random (length *seeds*)) *seeds*))))
                    (whole (outcome octets nil)))
               (unless (find-if #'integerp (first whole)) (incf good))
               (flet ((heads (outcome)
                        ;; bodies come in other portions, and errors may come after parts of them
                        (mapcar (lambda (events) (remove-if #'stringp events)) outcome)))
                 (unless (and (equal (heads whole) (heads (outcome octets 1)))
                              (equal (heads whole) (heads (outcome octets (1+ (random 9))))))
                   (fail "seed ~D: ~S" seed (text-of octets 0 (length octets)))
                   (return)))))
    (is (plusp good))))
