;;;; The dearest inputs: what a peer says that costs us most for each octet. The search keeps the
;;;; dearest cases that it has found and goes on from them.
;;;;
;;;; The cost of an input is the processor time of the thread that takes it, for each octet that a
;;;; peer sends to have it taken. A case says some octets before, once, such as fields for the
;;;; table of HPACK: these do not count, since an attacker says them once and goes on.
;;;;
;;;; The unit is what an octet of an ordinary call costs the same server: a unary call with a small
;;;; message, of 46 octets, as our client repeats it, without an observer. To make such a call costs
;;;; its sender about as much as it costs us, and a system call, which we do not count. A request
;;;; counts as 46 octets at least, however few HPACK makes of it: who sends it has a stream to
;;;; count, and is sent an answer. Likewise a message of a stream in JSON counts as five octets at
;;;; least, as gRPC's prefix, though {} has two: a handler gets it, which may answer. So an input of
;;;; N units costs us about N times what it cost its sender. +MOST-UNITS+ is what no input may cost.
;;;;
;;;; What is left out: handshakes of TLS, which are slow work of a turn (loop/loop-structure.lisp)
;;;; and come with a connection each; scrapes of metrics, of which few are made in a second.
;;;;
;;;; Times are the shortest of several, in turns with the unit, so that a busy machine, whose caches
;;;; others use, does not make an input dear.

(in-package #:clgrpc.tests.fuzz)

(defconstant +most-units+ 20 "How many units an input may cost for each octet.")
(defconstant +longest-case+ 12000 "How many octets a case has at most.")
(defconstant +kept-cases+ 24 "From so many of the dearest cases the search goes on.")

(defun thread-ns ()
  "How much processor time this thread has used, in nanoseconds."
  (multiple-value-bind (seconds nanoseconds)
      (sb-unix::clock-gettime sb-unix:clock-thread-cputime-id)
    (+ (* seconds 1000000000) nanoseconds)))

;;; Subjects

(defstruct (subject (:copier nil))
  "What is searched for dear inputs. A case is whatever the functions understand."
  (name "" :type string)
  (seeds #'identity :type function)     ; (): a list of cases
  (vary #'identity :type function)      ; (case other): another case
  (measure #'identity :type function)   ; (case): nanoseconds, octets, and octets said before
  (show #'identity :type function))     ; (case): a text of one line

(defvar *subjects* '())

(defmacro define-subject (name &key seeds vary measure show)
  `(setf *subjects* (append (remove ,name *subjects* :key #'subject-name :test #'string=)
                            (list (make-subject :name ,name :seeds ,seeds :vary ,vary
                                                :measure ,measure :show ,show)))))

(defun shortened (text &optional (most 90))
  (let ((text (substitute-if #\. (lambda (char) (or (char< char #\Space) (char= char #\|))) text)))
    (if (<= (length text) most)
        text
        (format nil "~A … (~D characters)" (subseq text 0 most) (length text)))))

;;; Decoders

(defstruct (parcel (:copier nil))
  "A case of a decoder."
  (kind nil :read-only t)               ; as in a SAMPLE
  (octets nil :type octets :read-only t))

(defun swell (octets others)
  "OCTETS with a part of them, or of another, many times."
  (let ((source (if (chance-p 3) (pick others) octets)))
    (multiple-value-bind (start end) (random-range source)
      (let* ((part (subseq source start end))
             (times (ash 1 (below 12)))
             (at (below (1+ (length octets)))))
        (if (zerop (length part))
            octets
            (splice octets at at
                    (join-octets (loop repeat (min times (floor +longest-case+ (length part)))
                                       collect part))))))))

(defun bounded (octets)
  (subseq octets 0 (min (length octets) +longest-case+)))

(defun vary-octets (octets others)
  (loop repeat (times-to-mutate)
        do (setf octets (if (chance-p 3)
                            (swell octets others)
                            (mutate-octets octets others))))
  (bounded octets))

(defun ns-of (function)
  "How long FUNCTION takes this thread."
  (let ((count 1))
    (loop
      (let ((start (thread-ns)))
        (loop repeat count do (funcall function))
        (let ((taken (- (thread-ns) start)))
          (when (or (> taken 100000) (> count 100))
            (return (/ taken count)))
          (setf count (* 4 count)))))))

(defun define-decoder (name samples decode)
  "Search the decoder NAME, whose samples the function SAMPLES makes, and which DECODE, a function
of kind and octets, is."
  (define-subject name
    :seeds (lambda ()
             (loop for sample in (funcall samples)
                   collect (make-parcel :kind (sample-kind sample)
                                        :octets (bounded (sample-octets sample)))))
    :vary (lambda (case other)
            (make-parcel :kind (parcel-kind case)
                         :octets (vary-octets (parcel-octets case)
                                              (vector (parcel-octets other)))))
    :measure (lambda (case)
               (let ((kind (parcel-kind case)) (octets (parcel-octets case)))
                 (values (ns-of (lambda () (handler-case (funcall decode kind octets)
                                             (error () nil))))
                         ;; what carries it
                         (+ 20 (length octets))
                         0)))
    :show (lambda (case)
            (format nil "~@[~A: ~]~A" (parcel-kind case) (shown (parcel-octets case))))))

(define-decoder "binary" #'binary-samples
  (lambda (type octets) (protobuf:parse-message type octets :partial t)))

(define-decoder "plain-json" #'plain-json-samples
  (lambda (kind octets) (declare (ignore kind)) (parse-json octets)))

(define-decoder "json" #'json-samples
  (lambda (type octets) (protobuf:parse-json-message type octets :partial t)))

(define-decoder "dns" #'dns-samples
  (fn (_kind octets)
    (dns:message-outcome (dns:parse-message octets 0 (length octets))
                         (dns:name-octets "a.bc.def") dns:+a+)))

(define-decoder "http1-client" (lambda () (http1-samples :client *http1-responses*))
  (lambda (role octets)
    (let ((parser (http1:make-parser role)) (at 0))
      (http1:expect-response parser "GET")
      (loop for event = (multiple-value-bind (next event)
                            (http1:parse parser octets at (length octets))
                          (setf at next)
                          event)
            while event
            do (when (eq :end event) (http1:next-message parser))))))

(defun text-seeds (&rest texts)
  (lambda () (loop for text in texts collect (make-sample :octets (ascii-octets text)))))

(define-decoder "status message" (text-seeds "not%20there%E2%82%AC" "plain" "%")
  (fn (_kind octets) (client::decode-status-message octets)))

(define-decoder "metadata" (text-seeds "AAECAw" "AA==,AQ" "a,b , c" ",,,")
  (fn (_kind octets)
    (let ((fields (vector (hpack:make-field (ascii-octets "x-bin") octets))))
      (when (wire:sound-metadata-p fields) (wire::fields-metadata fields)))))

(defparameter *traceparent* "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")

(define-decoder "trace context" (text-seeds *traceparent* "foo=1,bar=2" "a@b=c")
  (fn (_kind octets)
    (flet ((fields (name)
             (vector (hpack:string-field "traceparent" *traceparent*)
                     (hpack:make-field (ascii-octets name) octets)
                     (hpack:make-field (ascii-octets name) octets))))
      (clgrpc.trace::extract '(:tracecontext) (fields "tracestate"))
      (clgrpc.trace::extract '(:grpc-trace-bin) (fields "grpc-trace-bin"))
      (clgrpc.trace::extract '(:baggage) (fields "baggage")))))

(define-decoder "accept" (text-seeds "text/plain;q=0.5,*/*" "a;version=1,," "gzip;q=0.1")
  (fn (_kind octets)
    (let ((text (map 'string #'code-char octets)))
      (clgrpc.metrics:open-metrics-wanted-p text)
      (clgrpc.metrics:gzip-wanted-p text))))

;;; The server, with everything that watches it, in a simulation

(defvar *cost-simulation* nil "With the hosts plain and watched; it is made when needed.")

(defun start-watched-server (&rest options &key (listen "watched:1") &allow-other-keys)
  (let ((metrics (grpc:make-metrics))
        (health (make-instance 'grpc:health-service)))
    (apply
     #'grpc:start-server
     (list* (make-cost-probe) health (make-instance 'grpc:channelz-service)
            (grpc:reflection-services))
     :listen listen :execution :inline
     :http (list (grpc:health-handler health)
                 (grpc:http-handler "/echo" (fn (_request) (values 200 '() "x"))
                                    :methods '("GET" "POST")))
     :observer (list metrics
                     (grpc:make-tracing :propagators '(:tracecontext :grpc-trace-bin :baggage))
                     (grpc:make-access-log :ratio 1 :function (constantly nil)))
     options)))

(defun start-web-cost-server ()
  "One that is watched as well, and speaks the protocols of the web."
  (call-with-web-rules (lambda () (apply #'start-watched-server :listen "web:1" *web-options*))))

(defun make-cost-probe ()
  (clgrpc.tests.server:make-probe
   :ask (lambda (note call)
          (when call
            (grpc:call-metadata call)
            (grpc:current-baggage))
          note)
   :peek (lambda (note call) (declare (ignore call)) note)
   :watch (lambda (note call) (declare (ignore note)) call)
   :collect #'answer-collect :chat #'answer-later))

(defun start-plain-server ()
  (grpc:start-server (clgrpc.tests.server:make-probe
                      :ask (lambda (note call) (declare (ignore call)) note)
                      :watch (constantly nil) :collect (constantly nil) :chat (constantly nil))
                     :listen "plain:1" :execution :inline))

(defun cost-simulation ()
  (or *cost-simulation*
      (setf *cost-simulation*
            (make-fuzzed-simulation
             (fn (_simulation)
               (sim:add-host "plain" #'start-plain-server)
               (sim:add-host "watched" #'start-watched-server)
               (sim:add-host "web" #'start-web-cost-server))))))

(defun call-with-cost-peer (host function)
  "Call FUNCTION with a peer that is connected to HOST of the simulation."
  (call-in-fuzzed-simulation
   (cost-simulation)
   (fn (_simulation)
     (let ((peer (sim:connect-peer host 1)))
       (sim:settle :timeout 1/100)
       (unwind-protect (funcall function peer)
         (sim:hang-up peer)
         (sim:settle :timeout 1/100))))))

(defconstant +rounds+ 3 "So often a case is said in a measurement; the shortest time counts.")

(defvar *charges* (constantly 0)
  "Returns how much of the time since it was called last is charged to a peer, and so bounded.")

(defun ns-of-saying (peer octets)
  "How long the server, and the simulation around it, take to do what PEER says with OCTETS."
  (funcall *charges*)
  (let ((start (thread-ns)))
    (say peer octets)
    (- (thread-ns) start (funcall *charges*))))

;;; Requests over HTTP/2

(defstruct (ask (:copier copy-ask))
  "A request that is repeated."
  (fields '() :type list)               ; (name value), but for the method and path
  (verb "POST" :type string)            ; the method of HTTP
  (path "/" :type string)
  (body nil :type (or null octets))     ; nil: the headers end the stream
  (varied nil :type boolean))           ; each has a field that no other has

(defconstant +asks-at-once+ 16)
(defconstant +ordinary-octets+ 46 "How many octets an ordinary call has, see ORDINARY-ASK.")

(defparameter *ordinary-fields*
  '(("te" "trailers") ("content-type" "application/grpc") ("user-agent" "grpc/1")
    ("grpc-accept-encoding" "gzip,deflate,identity")))

;; not /metrics: a scrape takes milliseconds whatever asks for it, so few are made in a second,
;; which METRICS-ARE-NOT-MADE-FOR-EACH-REQUEST shows
(defparameter *ask-paths*
  #("/lab.Bench/Ask" "/lab.Bench/Watch" "/lab.Bench/Collect" "/lab.Bench/Chat" "/lab.Bench/None"
    "/grpc.health.v1.Health/Check" "/grpc.health.v1.Health/List" "/grpc.health.v1.Health/Watch"
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo" "/healthz" "/healthz?a=b"
    "/echo" "/none" "*"))

(defparameter *ask-names*
  #("content-type" "te" "grpc-timeout" "grpc-encoding" "grpc-accept-encoding" "accept"
    "accept-encoding" "content-encoding" "content-length" "host" "user-agent" "cookie" "traceparent"
    "tracestate" "grpc-trace-bin" "grpc-tags-bin" "x-bin" "authorization" "baggage" "range"
    "if-none-match" "origin" "expect" "connection" "x" ":authority" ":scheme"
    "grpc-previous-rpc-attempts" "x-forwarded-for" "referer" "priority" "accept-language"))

(defparameter *ask-values*
  #("" "a" "," ";" "=" "&" "%" "%41" " ;" "\"" "a=1," "a=b;" "gzip," "identity;q=0.5," "q=0.001;"
    "text/plain;version=0.0.4;q=0.1," "*/*," "AAAA" "AA==," "1S" "99999999n" "application/grpc+x"
    "foo=1,foo=1," "é" "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))

(defun random-text (most)
  "A part of a value again and again, shorter than MOST."
  (let* ((part (pick *ask-values*))
         (times (if (chance-p 2) 1 (floor (below most) (max 1 (length part))))))
    (format nil "~v@{~A~:*~}~*" (max 1 times) part)))

(defun random-body ()
  (one-of nil
          (framed (octets-of))
          (framed (octets-of 10 1 97))
          (framed (random-octets (below 40)))
          (let ((part (one-of (octets-of 10 0) (octets-of 8 1) (octets-of 0 0 0 0 0)
                              (octets-of 11) (octets-of 34 2 8 1) (octets-of 58 1 0)
                              (random-octets 3))))
            (framed (join-octets (loop repeat (1+ (below 2000)) collect part))))
          (join-octets (loop repeat (1+ (below 200)) collect (framed (octets-of))))))

(defun vary-ask (ask other)
  (let* ((ask (copy-ask ask)) (fields (ask-fields ask)))
    (loop repeat (times-to-mutate)
          do (one-of
               (setf (ask-path ask) (pick *ask-paths*))
               (setf (ask-path ask) (format nil "~A~:[~;?~]~A" (pick *ask-paths*) (chance-p 2)
                                            (random-text 4000)))
               (setf (ask-verb ask) (pick #("GET" "POST" "HEAD" "PUT" "OPTIONS" "x")))
               (setf (ask-body ask) (random-body))
               (setf (ask-body ask) (let ((body (ask-body other)))
                                      (and body (vary-octets body (vector body)))))
               (setf (ask-varied ask) (chance-p 2))
               (setf fields (remove (pick *ask-names*) fields :key #'first :test #'string=))
               (setf fields (append fields (list (list (pick *ask-names*) (random-text 3800)))))
               (setf fields (append fields (list (list (pick *ask-names*) (random-text 40)))))
               (when fields
                 (let ((field (nth (below (length fields)) fields)))
                   (setf fields (append fields (loop repeat (1+ (below 300)) collect field)))))
               (when fields
                 (let ((at (below (length fields))))
                   (setf fields (replace-nth fields at
                                             (list (first (nth at fields)) (random-text 3800))))))
               (when (ask-fields other)
                 (setf fields (append fields (list (nth (below (length (ask-fields other)))
                                                        (ask-fields other))))))))
    ;; a list of 16 KB is too long, and the rest of it costs nothing
    (loop with size = 0
          for field in fields
          do (incf size (+ 32 (length (first field)) (length (second field))))
          while (< size 15000)
          collect field into kept
          finally (setf (ask-fields ask)
                        (stable-sort kept (lambda (a b)
                                            (and (char= #\: (char a 0)) (char/= #\: (char b 0))))
                                     :key #'first)))
    ask))

(defun ask-frames (ask encoder id)
  (let ((buffer (make-buffer)) (body (ask-body ask)))
    (hpack:begin-block encoder buffer)
    (flet ((add (name value how)
             (hpack:encode-field encoder buffer (hpack:string-field name value) how)))
      (add ":method" (ask-verb ask) :index)
      (unless (find ":scheme" (ask-fields ask) :key #'first :test #'string=)
        (add ":scheme" "http" :index))
      (add ":path" (ask-path ask) :index)
      (loop for (name value) in (ask-fields ask) do (add name value :index))
      (when (ask-varied ask) (add "n" (princ-to-string id) :plain)))
    (join-octets
     (list* (raw-frame 1 (if body 4 5) id
                       (subseq-octets (buffer-octets buffer) 0 (buffer-end buffer)))
            (when body
              (loop for start from 0 below (max 1 (length body)) by 16384
                    for end = (min (length body) (+ start 16384))
                    collect (raw-frame 0 (if (= end (length body)) 1 0) id
                                       (subseq body start end))))))))

(defun greeting ()
  "What a client says first: it has room for whatever comes."
  (let ((peer (dialogue:make-peer)))
    (join-octets (list dialogue:*preface*
                       (dialogue:frames-octets
                        peer '((:settings (:initial-window-size #x7FFFFFFF)) (:settings-ack)
                               (:window-update 0 #x7FFF0000)))))))

(defun measure-ask (ask &optional (host "watched"))
  (call-with-cost-peer
   host
   (lambda (peer)
     (let ((encoder (hpack:make-encoder)) (id -1) (before 0) (length 0) (shortest nil))
       (flet ((asks (count)
                (join-octets (loop repeat count collect (ask-frames ask encoder (incf id 2))))))
         (say peer (greeting))
         (let ((first (asks 2)))
           (setf before (length first))
           (say peer first))
         (loop repeat +rounds+
               until (sim:left-p peer)
               do (let ((octets (asks +asks-at-once+)))
                    (setf length (max (length octets)
                                      (* +ordinary-octets+ +asks-at-once+)))
                    (let ((ns (ns-of-saying peer octets)))
                      (when (or (null shortest) (< ns shortest)) (setf shortest ns))))))
       (values (or shortest 0) (max 1 length) before)))))

(defun show-ask (ask)
  (let ((fields (ask-fields ask)))
    (format nil "~A ~A~@[ with a body of ~D octets~], ~D fields~@[: ~{~A~^, ~}~]~:[~;, varied~]"
            (ask-verb ask) (ask-path ask) (and (ask-body ask) (length (ask-body ask)))
            (length fields)
            (loop for (name value) in (remove-duplicates fields :test #'equal)
                  repeat 12 collect (format nil "~A (~D)" name (length value)))
            (ask-varied ask))))

(defun ordinary-ask ()
  (make-ask :fields *ordinary-fields* :path "/lab.Bench/Ask" :body (note-frames 4)))

(defun baggage-text (length members)
  "A baggage of MEMBERS of about LENGTH characters each."
  (format nil "~{~A~^,~}"
          (loop for i below members
                collect (format nil "m~D=~A" i (make-string (max 1 (- length 4))
                                                            :initial-element #\a)))))

(defun ask-seeds ()
  (append (loop for path across *ask-paths*
                for body in (list (note-frames 4) (framed (octets-of)) nil)
                append (list (make-ask :fields *ordinary-fields* :path path :body body)
                             (make-ask :fields '() :verb "GET" :path path)))
          ;; what was found once
          (loop for (name part count) in '(("tracestate" "a=1," 900) ("grpc-trace-bin" "AAAA" 900)
                                           ("grpc-accept-encoding" "gzip," 700)
                                           ("accept" "a/b;q=0.1," 350) ("cookie" "a=b;" 900))
                collect (make-ask :path "/lab.Bench/Ask"
                                  :fields (append *ordinary-fields*
                                                  (list (list "traceparent" *traceparent*)
                                                        (list name (format nil "~v@{~A~:*~}~*"
                                                                           count part))))))
          (list (make-ask :path "/lab.Bench/Ask" :body (note-frames 4)
                          :fields (append *ordinary-fields*
                                          (loop repeat 14
                                                collect (list "baggage"
                                                              (format nil "a=~v@{~A~:*~}~*" 160
                                                                      "%C3%A9"))))))
          ;; unknown encodings, and a text of an error that has to be escaped
          (loop for (length times) in '((510 26) (1 300))
                collect (make-ask :path "/lab.Bench/Ask" :body (note-frames 4)
                                  :fields (append *ordinary-fields*
                                                  (loop with field = (list "grpc-encoding"
                                                                           (make-string
                                                                            length
                                                                            :initial-element #\a))
                                                        repeat times collect field))))
          (list (make-ask :path (format nil "/none?~A" (make-string 1300 :initial-element #\é))
                          :fields *ordinary-fields* :body (note-frames 4)))
          ;; a baggage in many headers is joined in each request
          (loop for (length members times) in '((8 300 1) (54 50 1) (54 50 4) (54 31 8) (54 1 60)
                                                (2800 1 5) (1000 1 14))
                collect (make-ask :path "/lab.Bench/Ask" :body (note-frames 4)
                                  :fields (append *ordinary-fields*
                                                  (loop with field = (list "baggage"
                                                                           (baggage-text length
                                                                                         members))
                                                        repeat times collect field))))
          (list (make-ask :path "/lab.Bench/Ask"
                          :fields (append *ordinary-fields*
                                          (loop repeat 4
                                                collect (list "host" (make-string
                                                                      3700 :initial-element #\a)))))
                (make-ask :path (format nil "/healthz?~A" (make-string 3700 :initial-element #\&))
                          :verb "GET")
                (make-ask :path "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
                          :fields *ordinary-fields*
                          :body (framed (join-octets
                                         (list (octets-of 34 9) (ascii-octets "lab.Bench"))))))))

(define-subject "requests"
  :seeds #'ask-seeds :vary #'vary-ask :measure #'measure-ask :show #'show-ask)

;;; Messages that are compressed. What they take beyond what their octets earn has a share of time
;;; (server/limits/decompression-budget.lisp) and is not counted. In a simulation it is charged, and
;;; nobody waits for it. The method is one that does not answer with what it got.

(defconstant +longest-expanded+ 200000 "No message becomes longer in the search.")

(defun compressed-message (octets)
  "OCTETS as a message in gzip, with its prefix."
  (let ((parcel (wire::compress-octets (nth-value 1 (encoding:check-compression :gzip)) 9
                                       (join-octets (list (make-octets 5) octets))
                                       (+ 5 (length octets)))))
    (subseq-octets (wire:encoded-octets parcel) 0 (wire:encoded-length parcel))))

(defun call-with-charges (function)
  "Call FUNCTION with a function that returns how many nanoseconds peers were charged with since it
was called last."
  (let ((charged 0))
    (with-replaced (('server::charge-time
                     (fn (_function _budget ns _percent)
                       (incf charged ns)
                       nil)))
      (funcall function (lambda () (shiftf charged 0))))))

(defun measure-compressed (octets &optional (host "watched") (ask #'make-compressed-ask))
  "As MEASURE-ASK of the calls that ASK makes of OCTETS in gzip, without what is charged."
  (call-with-charges
   (lambda (take-charges)
     (let ((*charges* take-charges))
       (measure-ask (funcall ask octets) host)))))

(defun make-compressed-ask (octets)
  (make-ask :path "/lab.Bench/Watch" :body (compressed-message octets)
            :fields (append *ordinary-fields* '(("grpc-encoding" "gzip")))))

(defun make-compressed-web-ask (octets)
  (make-ask :path "/lab.Bench/Watch" :body (compressed-message octets)
            :fields '(("content-type" "application/connect+json")
                      ("connect-content-encoding" "gzip"))))

(defun repeated-octets (part)
  "PART again and again."
  (join-octets (loop repeat (1+ (below (floor +longest-expanded+ (max 1 (length part)))))
                     collect part)))

(defun vary-compressed (octets other)
  (let ((varied (if (chance-p 3)
                    (repeated-octets (random-octets (1+ (below 8))))
                    (vary-octets octets (vector other)))))
    (subseq varied 0 (min +longest-expanded+ (length varied)))))

(defun show-compressed (octets)
  (format nil "~D octets in gzip that become ~D: ~A" (length (compressed-message octets))
          (length octets) (shown octets)))

(define-subject "compressed"
  :seeds (lambda ()
           (loop for part in (list (octets-of 10 0) (octets-of 8 1) (octets-of 0)
                                   (octets-of 34 2 8 1) (octets-of 34 0) (octets-of 26 1 97))
                 append (loop for count in '(10 100 1000 20000)
                              collect (join-octets (loop repeat count collect part)))))
  :vary #'vary-compressed :measure #'measure-compressed :show #'show-compressed)

(defun compressed-json-seeds ()
  (loop for part in '("{}," "{\"number\":1e308}," " " "{\"text\":\"\\u00e9\"},")
        append (loop for count in '(1 10 100 3000)
                     collect (string-octets
                              (format nil "{\"parts\":[~v@{~A~:*~}{}]}" count part)))))

(define-subject "compressed json"
  :seeds #'compressed-json-seeds
  :vary (lambda (octets other)
          (let ((varied (vary-octets octets (vector other))))
            (if (zerop (length varied)) other varied)))
  :measure (lambda (octets) (measure-compressed octets "web" #'make-compressed-web-ask))
  :show #'show-compressed)

;;; Frames of any kind, on a connection that has open streams

(defun frame-seeds ()
  (loop for forms in '(((:ping 1)) ((:settings (:initial-window-size 100))) ((:priority 1 0))
                       ((:window-update 0 1)) ((:window-update 1 1)) ((:data 1 "" ()))
                       ((:headers 5 :post) (:rst-stream 5 :cancel))
                       ((:headers 5 :post :open) (:continuation 5 #.(octets-of)))
                       ((:frame 200 0 0 #.(octets-of 1 2 3))) ((:goaway 0 :no-error))
                       ((:settings (:header-table-size 0)) (:settings (:header-table-size 4096))))
        collect (mapcar (lambda (form) (dialogue:frame-octets (dialogue:make-peer)
                                                              (remove nil form)))
                        forms)))

(defun vary-frames (frames others)
  "FRAMES with some of them changed, or many times."
  (let ((others (coerce others 'simple-vector)))
    (loop repeat (times-to-mutate)
          do (setf frames
                   (if (chance-p 3)
                       (let ((frame (nth (below (length frames)) frames)))
                         (append frames (loop repeat (ash 1 (below 9)) collect frame)))
                       (or (mutate-frames frames others) frames))))
    (loop for frame in frames
          sum (length frame) into size
          while (< size +longest-case+)
          collect frame into kept
          finally (return (or kept (list (random-frame)))))))

(defun renumbered (frames)
  "FRAMES with each HEADERS on a stream of its own, and what follows for a stream that is not open
yet on the last of these: else a connection takes only the first."
  (let ((next 5) (last 5))
    (flet ((on-stream (frame id)
             (let ((frame (copy-seq frame)))
               (setf (u32be frame 5) id)
               frame)))
      (loop for frame in frames
            collect (cond ((< (length frame) 9) frame)
                          ((= 1 (aref frame 3))
                           (prog1 (on-stream frame next)
                             (setf last next)
                             (incf next 2)))
                          ((< 3 (u32be frame 5)) (on-stream frame last))
                          (t frame))))))

(defun measure-frames (frames)
  (let ((times (max 1 (floor 1000 (max 1 (reduce #'+ frames :key #'length)))))
        (octets nil) (shortest nil))
    ;; nobody sends one frame by itself
    (setf octets (join-octets (renumbered (loop repeat times append frames))))
    (loop repeat +rounds+
          do (call-with-cost-peer
              "watched"
              (lambda (peer)
                (say peer (greeting))
                (say peer (dialogue:frames-octets (dialogue:make-peer)
                                                  `((:headers 1 ,(request-fields "Collect"))
                                                    (:headers 3 ,(request-fields "Watch")))))
                (let ((ns (ns-of-saying peer octets)))
                  (when (or (null shortest) (< ns shortest)) (setf shortest ns))))))
    (values shortest (length octets) 0)))

(define-subject "frames"
  :seeds #'frame-seeds :vary #'vary-frames :measure #'measure-frames
  :show (lambda (frames)
          (format nil "~D frames, of the types ~{~D~^, ~}" (length frames)
                  (remove-duplicates (loop for frame in frames
                                           when (<= 9 (length frame)) collect (aref frame 3))))))

;;; Requests over HTTP/1.1

(defun http1-seeds ()
  (append
   (loop for text in (append *http1-requests*
                             '("GET /healthz HTTP/1.1|Host: a||"
                               "GET /healthz?service=a&b=%41 HTTP/1.1|Host: a||"
                               "POST /echo HTTP/1.1|Host: a|Transfer-Encoding: chunked||1|a|1|b|0||"
                               "GET /none HTTP/1.1|Host: a|Connection: a, b, c||"))
         collect (sample-octets (first (http1-samples nil (list text)))))
   (list (sample-octets
          (first (http1-samples nil (list (format nil "GET /healthz?~A HTTP/1.1|Host: a||"
                                                  (make-string 7000 :initial-element #\&)))))))))

(defun measure-http1 (octets &optional (host "watched"))
  (let* ((times (if (< (length octets) 1000) (ceiling 1000 (max 1 (length octets))) 1))
         (octets (join-octets (loop repeat times collect octets)))
         (shortest nil))
    (loop repeat +rounds+
          do (call-with-cost-peer
              host
              (lambda (peer)
                (let ((ns (ns-of-saying peer octets)))
                  (when (or (null shortest) (< ns shortest)) (setf shortest ns))))))
    (values shortest (length octets) 0)))

(define-subject "http1"
  :seeds #'http1-seeds
  :vary (lambda (octets other)
          (let ((varied (vary-octets (if (chance-p 3)
                                         (mutate-http1 (make-sample :octets octets)
                                                       (vector (make-sample :octets other)))
                                         octets)
                                     (vector other))))
            (if (zerop (length varied)) other varied)))
  :measure #'measure-http1 :show (lambda (octets) (shown octets)))

;;; Requests of the web's protocols, over HTTP/2 and over HTTP/1.1

(defun web-seeds ()
  "The requests of the fuzzer, as it has them: lines, an empty line and the body."
  (mapcar #'sample-octets (append (grpc-web-requests) (connect-requests) (get-requests)
                                  (rest-requests))))

(defun octets-ask (octets)
  "The request OCTETS of WEB-SEEDS as an ASK."
  (let* ((end (search (octets-of 10 10) octets))
         (lines (uiop:split-string (latin-text (subseq octets 0 end)) :separator '(#\Newline)))
         (words (uiop:split-string (first lines) :separator " "))
         (body (subseq octets (+ end 2))))
    (make-ask :verb (first words) :path (second words)
              :fields (loop for line in (rest lines)
                            for colon = (position #\: line)
                            collect (list (subseq line 0 colon) (subseq line (+ colon 2))))
              :body (and (plusp (length body)) body))))

(defun vary-query (path)
  "PATH with a query, or with more of it, of random text."
  (format nil "~A~:[?~;&~]~A" path (find #\? path)
          (one-of (random-text 3000)
                  (format nil "number=~A" (random-text 3000))
                  (format nil "~v@{~A~:*~}~*" (1+ (below 300))
                          (pick #("number=1&" "text=%41&" "text=a&" "none.none=1&" "&")))
                  (format nil "message=~A" (random-text 3000)))))

(defun json-part ()
  (string-octets (pick #("{\"number\":1}" "{}" "[]," "{\"text\":\"" "\\u00e9" "\"}" " " "1e99"
                         "\"body\":\"AA==\"," "{\"number\":" "}" "data:" "null,"))))

(defun vary-web-ask (ask other)
  "ASK with changes in its path, its fields or its body, which stays of the web."
  (if (chance-p 4)
      (vary-ask ask other)
      (let ((ask (copy-ask ask)) (body (or (ask-body ask) (octets-of))))
        (loop repeat (times-to-mutate)
              do (one-of
                   (setf (ask-path ask) (vary-query (ask-path ask)))
                   (setf (ask-path ask) (ask-path other)
                         (ask-verb ask) (ask-verb other))
                   (setf (ask-fields ask) (ask-fields other))
                   (setf (ask-fields ask)
                         (append (ask-fields ask)
                                 (list (list (pick *ask-names*) (random-text 3000)))))
                   (setf body (vary-octets body (vector (or (ask-body other) body))))
                   (setf body (join-octets (loop repeat (1+ (below 1000)) collect (json-part))))
                   (setf body (let ((part (json-part)))
                                (join-octets (loop repeat (1+ (below 2000)) collect part))))
                   (setf body (join-octets (loop repeat (1+ (below 200)) collect body)))
                   (setf body (digits body))
                   (setf body (framed body))
                   (setf (ask-varied ask) (chance-p 2)))
                 (setf body (bounded body)))
        (setf (ask-body ask) (and (plusp (length body)) body)
              (ask-path ask) (subseq (ask-path ask) 0 (min 7000 (length (ask-path ask)))))
        ask)))

(defconstant +least-message-octets+ 5
  "So many octets a message of a stream counts as at least.")

(defun short-messages-octets (ask)
  "How many octets the JSON values of ASK's body are short of what messages count as at least."
  (let ((body (or (ask-body ask) (octets-of))))
    (handler-case
        (loop for (start . end) in (clgrpc.rest::value-ranges body (length body))
              sum (max 0 (- +least-message-octets+ (- end start))))
      (clgrpc.rest:request-error () 0))))

(defun measured-web (ask count measured)
  "The list MEASURED, values of a measurement of COUNT times ASK, with short messages counted."
  (destructuring-bind (ns octets before) measured
    (values ns (+ octets (* count (short-messages-octets ask))) before)))

(defun long-text (part)
  "PART again and again, as long as our encoder still puts into the table of HPACK."
  (format nil "~v@{~A~:*~}~*" (floor 2900 (length part)) part))

(defun found-web-asks ()
  "What was dear once: long texts that HPACK repeats by an octet or two, and a stream of messages
that have nothing."
  (flet ((ask (verb path &optional (body (string-octets "{}")) &rest fields)
           (make-ask :verb verb :path path :varied t
                     :body (and (string/= "GET" verb) body)
                     :fields (list* '("content-type" "application/json") fields))))
    (append
     (loop for (name part) in '(("grpc-trace-bin" "AA==,") ("x-bin" "AA,") ("x-bin" ",")
                                ("x-bin" "AAAA") ("accept-encoding" "gzip,")
                                ("accept-encoding" ",") ("content-encoding" "a")
                                ("content-type" "application/json;a=b")
                                ("access-control-request-headers" "a,") ("origin" "://"))
           for field = (list name (long-text part))
           collect (ask "POST" "/v1/ask/5" (string-octets "{}") field)
           collect (ask "POST" "/v1/ask/5" (string-octets "{}") field field field field))
     (loop for start in '("/none" "/v1/ask/5" "/v1/ask/a/x/")
           append (loop for part in '("/a" "a" "/" "%41" ":" "é" "1")
                        collect (ask "POST" (concatenate 'string start (long-text part)))))
     (loop for start in '("/none?" "/v1/watch/5?" "/v1/ask/a/x/b:go?" "/v1/watch/5?text=")
           append (loop for part in '("&" "number=1&" "text=%41&" "$a=1&number=1&" "+" "%41")
                        collect (ask "GET" (concatenate 'string start (long-text part)))))
     (list (ask "POST" "/v1/chat" (string-octets (subseq (long-text "{}") 0 120)))))))

(define-subject "web"
  :seeds (lambda () (append (mapcar #'octets-ask (web-seeds)) (found-web-asks)))
  :vary #'vary-web-ask
  :measure (lambda (ask)
             (measured-web ask +asks-at-once+ (multiple-value-list (measure-ask ask "web"))))
  :show #'show-ask)

(defun ask-http1 (ask)
  "The octets of ASK over HTTP/1.1."
  (join-octets
   (list (string-octets
          (clgrpc.tests.server:wire-text
           (format nil "~A ~A HTTP/1.1|Host: a|~:{~A: ~A|~}Content-Length: ~D||"
                   (ask-verb ask) (ask-path ask)
                   (remove #\: (ask-fields ask) :key (lambda (field) (char (first field) 0)))
                   (length (ask-body ask)))))
         (or (ask-body ask) (octets-of)))))

(define-subject "web over http1"
  :seeds (lambda () (append (mapcar #'octets-ask (web-seeds)) (found-web-asks)))
  :vary #'vary-web-ask
  :measure (lambda (ask)
             (let* ((octets (ask-http1 ask))
                    (measured (multiple-value-list (measure-http1 octets "web"))))
               (measured-web ask (/ (second measured) (length octets)) measured)))
  :show (lambda (ask) (format nil "HTTP/1.1: ~A" (show-ask ask))))

;;; The search

(defstruct (dear (:copier nil))
  "A case and what it costs."
  (subject nil)
  (case nil)
  (units 0 :type real)                  ; for each octet
  (octets 0 :type index)
  (before 0 :type index))               ; octets said once before

(defun ns-per-octet (measure case)
  (multiple-value-bind (ns octets before) (funcall measure case)
    (values (/ ns octets 1.0) octets before)))

(defun unit-ns (&optional (times 3))
  "What an octet of an ordinary call costs, in nanoseconds; the least of TIMES."
  (loop repeat times
        minimize (ns-per-octet (lambda (ask) (measure-ask ask "plain")) (ordinary-ask))))

(defun price (subject case unit)
  "The CASE of SUBJECT as a DEAR, where an octet of an ordinary call costs UNIT nanoseconds."
  (multiple-value-bind (ns octets before) (ns-per-octet (subject-measure subject) case)
    (make-dear :subject subject :case case :units (/ ns unit) :octets octets :before before)))

(defun confirmed (dear &optional (times 5))
  "DEAR with what it costs at least, measured TIMES more, in turns with the unit."
  (let ((ns nil) (unit nil))
    (loop repeat times
          do (let ((this (ns-per-octet (subject-measure (dear-subject dear)) (dear-case dear)))
                   (unit-now (unit-ns)))
               (setf ns (if ns (min ns this) this)
                     unit (if unit (min unit unit-now) unit-now))))
    (setf (dear-units dear) (/ ns unit))
    dear))

(defun dearest (subject seconds seed)
  "Search SUBJECT for SECONDS of this thread's time, by chance from SEED; return the dearest cases
that were found, a list of DEARs, the dearest first."
  (begin-input seed (sxhash (subject-name subject)))
  (let* ((unit (unit-ns 10))
         (end (+ (thread-ns) (round (* seconds 1000000000))))
         (seeds (coerce (let ((*random-state* (sb-ext:seed-random-state seed)))
                          (funcall (subject-seeds subject)))
                        'simple-vector))
         (kept '()) (best 0))
    (flet ((try (case)
             (let ((dear (price subject case unit)))
               (when (> (dear-units dear) best)
                 ;; once more: it may have been the machine
                 (confirmed dear 2)
                 (setf best (max best (dear-units dear))))
               (setf kept (let ((sorted (merge 'list (list dear) kept #'> :key #'dear-units)))
                            (subseq sorted 0 (min +kept-cases+ (length sorted))))))))
      (map nil #'try seeds)
      (loop while (< (thread-ns) end)
            do (try (funcall (subject-vary subject)
                             (if (chance-p 6)
                                 (pick seeds)
                                 (dear-case (nth (below (length kept)) kept)))
                             (pick seeds)))))
    (let ((sorted (sort (loop for dear in kept repeat 4 collect (confirmed dear))
                        #'> :key #'dear-units)))
      sorted)))

(defun show-dear (dear)
  (shortened (funcall (subject-show (dear-subject dear)) (dear-case dear))))

(defun write-dear (dears)
  "Write DEARS as a table for doc/limits.md."
  (format t "| units an octet | octets | said before | where | input |~%|---|---|---|---|---|~%")
  (dolist (dear dears)
    (format t "| ~,1F | ~D | ~D | ~A | ~A |~%" (dear-units dear) (dear-octets dear)
            (dear-before dear) (subject-name (dear-subject dear)) (show-dear dear)))
  (finish-output))

(defun find-dearest (seconds seed &key (subjects *subjects*))
  "Search all SUBJECTS, SECONDS in all. Write what is found, and return true if nothing costs more
than +MOST-UNITS+."
  (let ((all (loop for subject in subjects
                   for dears = (dearest subject (/ seconds (length subjects)) seed)
                   do (format t "~&~A~%" (subject-name subject))
                      (write-dear dears)
                   append dears)))
    (setf all (sort all #'> :key #'dear-units))
    (format t "~&~%The dearest ten; an ordinary call costs ~,1F ns an octet:~%~%" (unit-ns 10))
    (write-dear (subseq all 0 (min 10 (length all))))
    (or (null all) (<= (dear-units (first all)) +most-units+))))
