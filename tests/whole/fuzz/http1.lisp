;;;; HTTP/1.1: messages to a parser. However they are cut into portions, the same must come out: the
;;;; same heads, bodies and trailers, and the same fault or none.

(in-package #:clgrpc.tests.fuzz)

(defparameter *http1-requests*
  '("GET /a?b=c HTTP/1.1|Host: a|Accept: */*||"
    "POST /a HTTP/1.1|Host: a|Content-Length: 5||helloGET /b HTTP/1.1|Host: b||"
    "PUT /x HTTP/1.1|Host: a|Transfer-Encoding: chunked||5;x=y|hello|0|T: u||GET / HTTP/1.0||"
    "|OPTIONS * HTTP/1.1|Host: [::1]:80|Connection: close||"
    "POST http://a:1/x HTTP/1.1|host: b|Expect: 100-continue|content-length: 1||x"
    "GET / HTTP/1.1|Host: a||GET / HTTP/1.1|Host: a||GET / HTTP/1.1|Host: a|X: y||"
    "PUT / HTTP/1.1|Host: a|Content-Length: 1||xPUT / HTTP/1.1|Host: a|Content-Length: 1||x"
    "HEAD / HTTP/1.0|Connection: keep-alive, x||GET / HTTP/1.1|Host:a|X:  y z  ||"))

(defparameter *http1-responses*
  '("HTTP/1.1 200 OK|Content-Length: 2||hiHTTP/1.1 204 No Content||"
    "HTTP/1.1 100 Continue||HTTP/1.1 200 OK|Transfer-Encoding: chunked||A|0123456789|0|T: u||"
    "HTTP/1.0 200 OK|Server: x||until the end"
    "HTTP/1.1 304 Not Modified|ETag: \"x\"|Content-Length: 9||HTTP/1.1 404 |Connection: close||"))

(defun http1-samples (kind texts)
  "A sample of KIND for each of TEXTS, whose | are CR LF."
  (loop for text in texts
        collect (make-sample :kind kind
                             :octets (coerce (loop for char across text
                                                   if (char= #\| char) append '(13 10)
                                                   else collect (char-code char))
                                             'octets))))

(defun mutate-http1 (sample siblings)
  (let ((octets (sample-octets sample)))
    (loop repeat (times-to-mutate)
          do (setf octets (if (chance-p 2)
                              (let ((at (below (1+ (length octets)))))
                                (splice octets at at
                                        (octets-of (pick (octets-of 13 10 32 9 58 44 48 59)))))
                              (mutate-octets octets (vector (sample-octets (pick siblings)))))))
    octets))

(defun head-facts (message)
  (list (http1:message-http-method message) (http1:message-target message)
        (http1:message-status message) (http1:message-minor message)
        (map 'list (lambda (field) (list (hpack:field-name field) (hpack:field-value field)))
             (http1:message-fields message))
        (http1:message-body message) (http1:message-persistent-p message)
        (http1:message-expects-p message)))

(defun http1-outcome (role octets size)
  "What a parser of ROLE finds in OCTETS in portions of SIZE: a list of facts, the last of which is
the condition if there is one."
  (let ((parser (http1:make-parser role :max-head-octets 300 :max-fields 8)) (facts '()) (body 0))
    (dolist (request '("GET" "HEAD" "GET")) (http1:expect-response parser request))
    (flet ((take (portion)
             (loop with at = 0
                   for event = (multiple-value-bind (next event)
                                   (http1:parse parser portion at (length portion))
                                 (setf at next)
                                 event)
                   while event
                   do (ecase event
                        (:head (push (head-facts (http1:parser-message parser)) facts))
                        (:body (incf body (- (http1:parser-body-end parser)
                                             (http1:parser-body-start parser))))
                        (:end (push (list body (length (http1:parser-trailers parser))) facts)
                         (setf body 0)
                         (http1:next-message parser))))))
      (handler-case
          (progn
            (loop for start from 0 below (length octets) by size
                  do (take (subseq octets start (min (length octets) (+ start size)))))
            (push (http1:parse-end parser) facts))
        (http1:http1-error (error) (push error facts))))
    (nreverse facts)))

(defun fact= (a b)
  "True if two facts are the same. Of several faults in a line, which comes first may differ."
  (if (and (typep a 'condition) (typep b 'condition))
      (eql (http1:http1-error-status a) (http1:http1-error-status b))
      (equalp a b)))

(defun run-http1 (role octets)
  (declare (type octets octets))
  (let ((whole (http1-outcome role octets (max 1 (length octets))))
        (size (1+ (mod (reduce #'+ octets) 7))))
    (let ((cut (http1-outcome role octets size)))
      (unless (and (= (length whole) (length cut)) (every #'fact= whole cut))
        (found "whole it is ~S, in portions of ~D ~S" whole size cut)))
    (let ((last (first (last whole))))
      (when (typep last 'condition) (error last)))))

(define-target "http1-server"
  :samples (lambda () (http1-samples :server *http1-requests*))
  :mutate #'mutate-http1 :run #'run-http1 :conditions (http1:http1-error) :seconds 1/20)

(define-target "http1-client"
  :samples (lambda () (http1-samples :client *http1-responses*))
  :mutate #'mutate-http1 :run #'run-http1 :conditions (http1:http1-error) :seconds 1/20)
