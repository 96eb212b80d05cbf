;;;; Requests, responses and trailers (RFC 9113 sections 8.1 to 8.3) and header blocks on the wire
;;;; (4.3, 6.2, 6.10).

(in-package #:clgrpc.tests.dialogue)

(define-dialogue unary-call-at-the-server (:server)
  "Headers, one message, end; headers, one message, trailers."
  (hears '(:headers 1 :post) '(:data 1 "hello" :end-stream))
  (sees '(:headers 1 "/greeter/hello" nil) '(:data 1 "hello" t))
  (respond 1 :ok)
  (h2:send-data (find-stream 1) (ascii-octets "world") 0 5 nil)
  (respond 1 :done :end t)
  (says '(:headers 1 :ok) '(:data 1 "world") '(:headers 1 :done :end-stream))
  (sees '(:closed 1)))

(define-dialogue unary-call-at-the-client (:client)
  "The same from the other side."
  (request :post)
  (h2:send-data (find-stream 1) (ascii-octets "hello") 0 5 t)
  (says '(:headers 1 :post) '(:data 1 "hello" :end-stream))
  (hears '(:headers 1 :ok) '(:data 1 "world") '(:headers 1 :done :end-stream))
  (sees '(:headers 1 "200" nil) '(:data 1 "world" nil) '(:trailers 1 (("grpc-status" "0")))
        '(:closed 1)))

(define-dialogue trailers-only-and-empty-end (:client)
  "A response that is only headers, and one that ends with an empty DATA frame."
  (request :get :end t)
  (request :get :end t)
  (flush)
  (hears '(:headers 1 :ok :end-stream) '(:headers 3 :ok) '(:data 3 "") '(:data 3 "" :end-stream))
  (sees '(:headers 1 "200" t) '(:closed 1) '(:headers 3 "200" nil) '(:data 3 "" t) '(:closed 3)))

(define-dialogue interim-responses-are-swallowed (:client)
  "1xx responses are no news (8.1), but they cannot end a stream."
  (request :get :end t)
  (flush)
  (hears '(:headers 1 :continue) '(:headers 1 ((":status" "103") ("link" "x"))) '(:headers 1 :ok))
  (sees '(:headers 1 "200" nil))
  (hears '(:data 1 "x" :end-stream))
  (sees '(:data 1 "x" t) '(:closed 1))
  (request :get :end t)
  (flush)
  (hears '(:headers 3 :continue :end-stream))
  (says '(:rst-stream 3 :protocol-error))
  (sees '(:reset 3 :protocol-error :local) '(:closed 3)))

(defparameter *good*
  '((":method" "POST") (":scheme" "http") (":path" "/x")))

(test malformed-requests
  "Each of these is a stream error PROTOCOL_ERROR, and the owner never sees the stream."
  (flet ((plus (&rest fields) (append *good* fields))
         (without (name) (remove name *good* :key #'first :test #'string=)))
    (loop for (fields . remark)
            in `((,(plus '("X-Upper" "x")) . "capitals in a name")
                 (,(plus '("bad name" "x")) . "a blank in a name")
                 (,(plus '("" "x")) . "an empty name")
                 (,(plus '("a:b" "x")) . "a colon in a name")
                 (,(plus (list "a" (format nil "x~Cy" #\Return))) . "CR in a value")
                 (,(plus (list "a" (format nil "x~Cy" #\Newline))) . "LF in a value")
                 (,(plus (list "a" (format nil "x~Cy" (code-char 0)))) . "NUL in a value")
                 (,(plus '("content-type" " x")) . "a value that begins with a blank")
                 (,(plus (list "user-agent" (format nil "x~C" #\Tab)))
                  . "a value that ends with a tab")
                 (,(plus '(":unknown" "x")) . "an unknown pseudo-field")
                 (,(plus '(":status" "200")) . "a pseudo-field of responses")
                 (,(plus '("a" "b") '(":authority" "x")) . "a pseudo-field after the others")
                 (,(plus '(":path" "/y")) . "a pseudo-field twice")
                 (,(plus '("connection" "close")) . "connection")
                 (,(plus '("proxy-connection" "close")) . "proxy-connection")
                 (,(plus '("keep-alive" "1")) . "keep-alive")
                 (,(plus '("transfer-encoding" "chunked")) . "transfer-encoding")
                 (,(plus '("upgrade" "h3")) . "upgrade")
                 (,(plus '("te" "gzip")) . "te other than trailers")
                 (,(cons '(":authority" "a") (plus '("host" "b"))) . "another host")
                 (,(cons '(":authority" "a") (plus '("host" "a") '("host" "ab")))
                  . "the same host and another")
                 (,(plus '("host" "a") '("host" "b"))  . "two hosts")
                 (,(plus '("host" "a") '("host" "a"))  . "a host twice")
                 (,(without ":method") . "no method")
                 (,(without ":scheme") . "no scheme")
                 (,(without ":path") . "no path")
                 ((,@(without ":path") (":path" "")) . "an empty path")
                 ((,@(without ":method") (":method" "")) . "an empty method")
                 (,(plus '("content-length" "1" )) . "a length and no content")
                 (,(plus '("content-length" "-1")) . "a negative length")
                 (,(plus '("content-length" "")) . "an empty length")
                 (,(plus '("content-length" "1234567890123456789")) . "an absurd length")
                 (,(plus '("content-length" "0") '("content-length" "1")) . "two lengths")
                 (((":method" "CONNECT")) . "CONNECT without authority")
                 (((":method" "GET") (":authority" "x")) . "only CONNECT has no path"))
          do (let ((*dialogue* (begin-dialogue :server '())))
               (shake-hands)
               (hears `(:headers 1 ,fields :end-stream))
               (is (equalp '((:rst-stream 1 :protocol-error))
                           (read-frame-forms (dialogue-peer *dialogue*) (flush)))
                   "~A was accepted." remark)
               (sees)
               (hears `(:headers 3 ,*good* :end-stream))
               (sees '(:headers 3 "/x" t))))))

(test well-formed-requests
  "These look odd and are right."
  (dolist (fields `((,@*good* ("te" "trailers"))
                    (,@*good* ("host" "a"))
                    ((":authority" "a.Example") ,@*good* ("host" "A.example"))
                    (,@*good* ("content-length" "0"))
                    (,@*good* ("content-length" "0") ("content-length" "0"))
                    (,@*good* ("a" ""))
                    (,@*good* ("a" " x ") ("b" " "))
                    ((":method" "OPTIONS") (":scheme" "https") (":path" "*"))
                    ((":method" "CONNECT") (":authority" "localhost:80"))))
    (let ((*dialogue* (begin-dialogue :server '())))
      (shake-hands)
      (hears `(:headers 1 ,fields :end-stream))
      (says)
      (is (= 1 (length (dialogue-events *dialogue*)))))))

(test malformed-responses
  "The same at the client, which is told by ON-RESET."
  (dolist (fields '((("content-type" "x"))
                    ((":status" "20"))
                    ((":status" "abc"))
                    ((":status" "101"))
                    ((":status" "200") (":status" "200"))
                    ((":status" "200") (":path" "/"))
                    (("a" "b") (":status" "200"))
                    ((":status" "200") ("connection" "close"))))
    (let ((*dialogue* (begin-dialogue :client '())))
      (shake-hands)
      (request :get :end t)
      (flush)
      (hears `(:headers 1 ,fields :end-stream))
      (says '(:rst-stream 1 :protocol-error))
      (sees '(:reset 1 :protocol-error :local) '(:closed 1)))))

(define-dialogue trailers-have-no-pseudo-fields (:server)
  "A pseudo-field in trailers is malformed, and so are trailers that do not end the stream."
  (hears '(:headers 1 :post) '(:headers 1 ((":path" "/")) :end-stream))
  (says '(:rst-stream 1 :protocol-error))
  (sees '(:headers 1 "/greeter/hello" nil) '(:reset 1 :protocol-error :local) '(:closed 1))
  (hears '(:headers 3 :post) '(:headers 3 (("a" "b"))))
  (says '(:rst-stream 3 :protocol-error))
  (sees '(:headers 3 "/greeter/hello" nil) '(:reset 3 :protocol-error :local) '(:closed 3))
  (hears '(:headers 5 :post) '(:headers 5 (("a" "b")) :end-stream))
  (sees '(:headers 5 "/greeter/hello" nil) '(:trailers 5 (("a" "b")))))

(test content-length-must-be-true
  "Content shorter or longer than content-length says is malformed (8.1.1)."
  (loop for (frames . fine-p) in '((((:data 1 "abc") (:data 1 "de" :end-stream)) . t)
                                   (((:data 1 "abcde") (:headers 1 :done :end-stream)) . t)
                                   (((:data 1 "abc" :end-stream)) . nil)
                                   (((:data 1 "abc") (:data 1 "def" :end-stream)) . nil)
                                   (((:data 1 "abc") (:data 1 "def")) . nil)
                                   (((:data 1 "abc") (:headers 1 :done :end-stream)) . nil))
        do (let ((*dialogue* (begin-dialogue :server '())))
             (shake-hands)
             (hears `(:headers 1 (,@*good* ("content-length" "5"))))
             (apply #'hears frames)
             (if fine-p (says) (says '(:rst-stream 1 :protocol-error))))))

(define-dialogue responses-without-content (:client)
  "304 and 204 may name a length without having content."
  (dotimes (i 3) (request :get :end t))
  (flush)
  (hears '(:headers 1 ((":status" "304") ("content-length" "5")) :end-stream)
         '(:headers 3 ((":status" "204") ("content-length" "5")) :end-stream)
         '(:headers 5 ((":status" "200") ("content-length" "5")) :end-stream))
  (says '(:rst-stream 5 :protocol-error))
  (sees '(:headers 1 "304" t) '(:closed 1) '(:headers 3 "204" t) '(:closed 3)
        '(:reset 5 :protocol-error :local) '(:closed 5)))

(define-dialogue header-list-limit (:server :max-header-list-octets 1024)
  "A header list over the advertised limit ends its stream; the connection goes on."
  (hears `(:headers 1 (,@*good* ("a" ,(make-string 2000 :initial-element #\a))) :end-stream))
  (says '(:rst-stream 1 :enhance-your-calm))
  (hears `(:headers 3 ,*good* :end-stream))
  (sees '(:headers 3 "/x" t)))

;;; On the wire

(define-dialogue padding-and-priority (:server)
  "Padding is dropped, a priority in HEADERS is ignored."
  (hears '(:headers 1 :get (:pad 7)) '(:headers 3 :get (:depends 1)) '(:headers 5 :get (:pad 0)
                                                                       (:depends 3))
         '(:data 1 "abc" (:pad 200)) '(:data 3 "" (:pad 3)) '(:data 5 "x" (:pad 0) :end-stream))
  (sees '(:headers 1 "/" nil) '(:headers 3 "/" nil) '(:headers 5 "/" nil)
        '(:data 1 "abc" nil) '(:data 5 "x" t)))

(defmacro define-last-words (name frames code documentation)
  "Define a dialogue in which the client opens stream 1, then FRAMES end the connection with CODE."
  `(define-dialogue ,name (:server)
     ,documentation
     (hears '(:headers 1 :post))
     (sees '(:headers 1 "/greeter/hello" nil))
     (hears ,@frames)
     (says '(:goaway ,1 ,code))
     (sees '(:reset 1 ,code :connection) '(:closed 1) '(:close ,code))))

(define-last-words data-with-too-much-padding
    ((list :frame 0 8 1 (octets-of 3 0 0))) :protocol-error "6.1")
(define-last-words padded-data-without-a-length
    ((list :frame 0 8 1 (octets-of))) :protocol-error "6.1")
(define-last-words frame-inside-a-block
    ('(:headers 1 :done :end-stream :open) '(:ping 1)) :protocol-error "6.10")
(define-last-words unknown-frame-inside-a-block
    ('(:headers 1 :done :end-stream :open) (list :frame 99 0 1 (octets-of))) :protocol-error "5.5")
(define-last-words other-stream-inside-a-block
    ('(:headers 1 :done :end-stream :open) (list :continuation 3 (octets-of)))
  :protocol-error "6.10")
(define-last-words continuation-of-nothing
    ((list :continuation 1 (octets-of))) :protocol-error "6.10")
(define-dialogue continuation-of-a-whole-block (:server)
  "END_HEADERS ends a block for good (6.10)."
  (hears '(:headers 1 :get) (list :continuation 1 (octets-of)))
  (says '(:goaway 1 :protocol-error))
  (sees '(:headers 1 "/" nil) '(:reset 1 :protocol-error :connection) '(:closed 1)
        '(:close :protocol-error)))

(test headers-of-impossible-sizes
  "Padding and priority that do not fit HEADERS (6.2)."
  (loop for (flags octets code) in '((#x08 (9 0) :protocol-error)
                                     (#x08 () :frame-size-error)
                                     (#x20 (0 0 0 1) :frame-size-error)
                                     (#x28 (0 0 0 0 1) :frame-size-error))
        do (let ((*dialogue* (begin-dialogue :server '())))
             (shake-hands)
             (hears (list :frame 1 (logior 4 flags) 1 (apply #'octets-of octets)))
             (says (list :goaway 0 code))
             (sees (list :close code)))))

(define-dialogue block-in-pieces (:server)
  "A header block is whole with END_HEADERS; END_STREAM stands in its first frame."
  (let ((block (encode-fields (peer-encoder (dialogue-peer *dialogue*)) :post)))
    (hears `(:headers 1 ,(subseq block 0 3) :open :end-stream)
           `(:continuation 1 ,(subseq block 3 3) :open)
           `(:continuation 1 ,(subseq block 3 10) :open)
           `(:continuation 1 ,(subseq block 10)))
    (sees '(:headers 1 "/greeter/hello" t))))

(define-dialogue block-too-large (:server :max-header-block-octets 4096)
  "A block that never ends is stopped, even if its pieces are empty."
  (hears '(:headers 1 :none :open))
  (loop repeat 454 do (hears (list :continuation 1 (octets-of) :open)))
  (silent)
  (hears (list :continuation 1 (octets-of) :open))
  (says '(:goaway 0 :enhance-your-calm))
  (sees '(:close :enhance-your-calm)))

(define-dialogue block-as-large-as-may-be (:server :max-header-block-octets 4096)
  "With its frames' headers a block may have exactly as many octets as the option says. Its stream,
if there is one, ends with that reason."
  (hears '(:headers 1 :post))
  (sees '(:headers 1 "/greeter/hello" nil))
  (hears '(:headers 1 :none :open :end-stream)
         (list :continuation 1 (make-octets (- 4096 9 9)) :open))
  (silent)
  (hears (list :continuation 1 (octets-of) :open))
  (says '(:goaway 1 :enhance-your-calm))
  (sees '(:reset 1 :enhance-your-calm :local) '(:closed 1) '(:close :enhance-your-calm)))

(define-dialogue blocks-we-split (:server)
  "Our block is split at the peer's largest frame; exactly that size needs no CONTINUATION."
  (hears '(:headers 1 :get :end-stream) '(:headers 3 :get :end-stream))
  (sees '(:headers 1 "/" t) '(:headers 3 "/" t))
  (flet ((fields (count)                ; Huffman codes for | have 15 bits: sent plain
           `((":status" "200") ("aa" ,(make-string count :initial-element #\|)))))
    (respond 1 (fields (- 16384 8)))
    (says `(:headers 1 ,(fields (- 16384 8))))
    (respond 1 (fields (- 40000 9)) :end t)
    (says `(:headers 1 ,(fields (- 40000 9)) :end-stream (:pieces 16384 16384 7232)))
    (respond 3 :ok :end t)
    (says '(:headers 3 :ok :end-stream)))
  (sees '(:closed 1) '(:closed 3)))

(define-dialogue broken-compression (:server)
  "A block that HPACK rejects ends the connection (4.3)."
  (hears (list :headers 1 (octets-of #xFF #xFF #xFF #xFF #xFF #xFF)))
  (says '(:goaway 0 :compression-error))
  (sees '(:close :compression-error)))

(define-dialogue streams-that-depend-on-themselves (:server)
  "Priorities are ignored, but not this error of RFC 7540 5.3.1."
  (hears '(:headers 1 :get (:depends 1)))
  (says '(:rst-stream 1 :protocol-error))
  (hears '(:headers 3 :get) '(:priority 3 3))
  (says '(:rst-stream 3 :protocol-error))
  (sees '(:headers 3 "/" nil) '(:reset 3 :protocol-error :local) '(:closed 3))
  (hears '(:headers 5 :post) '(:headers 5 :none :end-stream (:depends 5)))
  (says '(:rst-stream 5 :protocol-error))
  (sees '(:headers 5 "/greeter/hello" nil) '(:reset 5 :protocol-error :local) '(:closed 5))
  (hears '(:priority 3 3))              ; which is known no more
  (says '(:rst-stream 3 :protocol-error))
  (hears '(:priority 9 9))
  (says '(:goaway 5 :protocol-error))
  (sees '(:close :protocol-error)))
