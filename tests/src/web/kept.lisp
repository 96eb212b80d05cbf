;;;; All memory that a connection keeps for requests of the web's protocols is charged to its
;;;; account, as tests/src/server/kept.lisp shows for gRPC.

(in-package #:clgrpc.tests.web)

(defun speak-all (server-loop)
  "Let SERVER-LOOP, in memory, speak all protocols."
  (let* ((server (server::server-loop-server server-loop))
         (protocols (server::find-protocols '(:grpc :grpc-web :connect :rest)))
         (claimers (server::prepare-claimers server protocols
                                             (server::server-loop-routes server-loop))))
    (setf (slot-value server 'server::protocols) protocols
          (server::server-claimers server) claimers
          (server::server-loop-claimers server-loop) claimers)
    (answer-http server-loop)))

(defun octets-of-text (text)
  "TEXT, whose characters are octets, as octets."
  (map 'octets #'char-code text))

(defun long-body (row)
  "A body for ROW, of *GOOD-REQUESTS*: messages of 1,000 octets, in envelopes if the protocol has
them, and the length that the body announces."
  (let* ((json (format nil "{\"text\":\"~A\"}" (make-string 1000 :initial-element #\a)))
         (envelope (map 'string #'code-char
                        (list 0 0 0 (ash (length json) -8) (logand 255 (length json)))))
         (messages (ecase (first row)
                     (:connect-stream (loop repeat 30 collect envelope collect json))
                     (:grpc-web (list envelope json)) ; a second one would be an error
                     ((:connect :rest) (list (subseq json 0 900)))
                     (:rest-stream (loop repeat 30 collect json)))))
    (apply #'concatenate 'string messages)))

(defun nested-rows ()
  "Rows like *GOOD-REQUESTS* with short bodies, whose messages have many others inside."
  (let ((octets (loop repeat 4000 collect #x22 collect 0)) ; 4: {}
        (json (format nil "{\"parts\":[~{~A~^,~}]}" (loop repeat 600 collect "{}"))))
    (flet ((envelope (length)
             (map 'string #'code-char (list 0 0 0 (ash length -8) (logand 255 length)))))
      (list (list :grpc-web-proto "POST /lab.Bench/Ask" "application/grpc-web+proto"
                  (concatenate 'string (envelope (length octets)) (map 'string #'code-char octets)))
            (list :grpc-web-json "POST /lab.Bench/Ask" "application/grpc-web+json"
                  (concatenate 'string (envelope (length json)) json))))))

(defparameter *shared*
  '(server:protocol-handler web:codec web:heads web::form rest:route rest::node
    clgrpc.exchange:answer-head)
  "The objects that the requests of a protocol share.")

(test all-that-a-connection-of-the-web-keeps-is-charged
  "In each protocol: half a head, half a body, and an answer that nobody takes."
  (call-with-rules
   (lambda (&aux (*others* (append *shared* *others*)))
     (dolist (row (remove :grpc-web-text *good-requests* :key #'first))
       (let* ((body (long-body row))
              (request (octets-of-text (request-text row "Content-Length: 200000|" body))))
         (dolist (end (list 60 (length request)))
           (with-server-loop (server-loop)
               (:ask #'double :collect (fn (_stream call) call))
             (speak-all server-loop)
             (let ((link (connects server-loop)))
               (memory:say memory:*world* memory:*end* (subseq request 0 end))
               (is (null (wire::link-failure link)))
               (check-kept link (format nil "~(~A~), ~D octets" (first row) end))))))))))

(test messages-inside-a-request-are-charged
  "A request that is decoded before its body has ended is charged with the messages inside it, which
take many times their octets."
  (call-with-rules
   (lambda (&aux (*others* (append *shared* *others*)))
     (dolist (row (nested-rows))
       (with-server-loop (server-loop) (:ask #'double)
         (speak-all server-loop)
         (let ((link (connects server-loop)))
           (memory:say memory:*world* memory:*end*
                       (octets-of-text (request-text row "Content-Length: 200000|" (fourth row))))
           (is (null (wire::link-failure link)))
           (is (< 20000 (support:walk-octets link #'clgrpc.tests.server:other-p))
               "~A was not decoded" (first row))
           (check-kept link (first row))))))))

(test parameters-for-a-stream-of-requests-are-charged
  "They are read when the body is complete, and kept until all of its messages are delivered."
  (call-with-rules
   (lambda ()
     (with-server-loop (server-loop)
         (:collect (fn (_stream call) call))
       (speak-all server-loop)
       (let* ((link (connects server-loop))
              (line (format nil "POST /v1/collect/numbers?text=~A"
                            (make-string 7000 :initial-element #\x)))
              (request (octets-of-text (request-text (list :rest-stream line "application/json")
                                                     "Content-Length: 3|" "1 2")))
              (end (1- (length request))))
         (flet ((charged (start end)
                  (memory:say memory:*world* memory:*end* (subseq request start end))
                  (octets-charged link)))
           (is (<= 28000 (- (- (charged 0 end) (charged end nil)))))))))))

(defun literal-path (path)
  "The octets of the field :path with PATH, which the table keeps."
  (let ((rest (- (length path) 127)))
    (concatenate 'octets (list #x44 #x7F (logior #x80 (logand #x7F rest)) (ash rest -7))
                 (ascii-octets path))))

(test claims-that-blocks-remember-are-charged
  "A header block that a peer repeats keeps the claim of its request, with a copy of the path and
the query. Many blocks share a path in the table."
  (call-with-rules
   (lambda (&aux (*others* (append *shared* *others*)))
     (with-server-loop (server-loop) (:ask #'double)
       (speak-all server-loop)
       (comes server-loop)
       (let ((link (link-of memory:*end* server-loop)) (id 1)
             (path (format nil "/v1/ask?$x=~A" (make-string 3900 :initial-element #\x))))
         (flet ((request (&rest parts)
                  (memory:say memory:*world* memory:*end*
                              (apply #'raw-request id '(#x83 #x86) parts))
                  (incf id 2)))
           (request (literal-path path))
           (loop for i from 33 repeat 16
                 do (loop repeat 3 do (request '(#xBE) (list #x0F #x04 1 i)))))
         (is (null (wire::link-failure link)))
         (is (< 20000 (support:walk-octets link #'clgrpc.tests.server:other-p))
             "the claims were not kept")
         (check-kept link "claims"))))))
