;;;; Templates in data and metadata, in ghz's terms: {{.RequestNumber}}, {{randomInt 1 10}} and so
;;;; on. A text with templates is compiled once to a list of pieces; a text without templates stays
;;;; a string, so that constant data are encoded only once.

(in-package #:clgrpc.load)

(define-condition template-error (clgrpc-error)
  ((text :initarg :text :reader template-error-text)) ; the error, in one line
  (:report (lambda (condition stream) (write-string (template-error-text condition) stream)))
  (:documentation "A template in data or metadata is malformed."))

(defun fail-template (control &rest arguments)
  (error 'template-error :text (format nil "~?" control arguments)))

(defstruct (call-data (:copier nil))
  "The values that templates may use."
  (number 0 :type quantity) ; the number of the request, from 0 on
  (worker 0 :type index)                ; the number of the connection in the run
  (method nil :type (or null method:rpc-method)) ; the method that is called
  (random *random-state* :type random-state)) ; the generator's

(declaim (sb-ext:freeze-type call-data))

(defun uuid-text (random)
  "A UUID of version 4 (RFC 9562)."
  (let ((bits (random (ash 1 128) random)))
    (setf (ldb (byte 4 76) bits) 4
          (ldb (byte 2 62) bits) 2)
    (let ((hex (format nil "~(~32,'0X~)" bits)))
      (format nil "~A-~A-~A-~A-~A" (subseq hex 0 8) (subseq hex 8 12) (subseq hex 12 16)
              (subseq hex 16 20) (subseq hex 20)))))

(defun random-text (length random)
  "A text of LENGTH random letters and digits, or, if LENGTH is not positive, of 2 to 16, as in
ghz."
  (let ((letters "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"))
    (coerce (loop repeat (if (plusp length) length (+ 2 (random 15 random)))
                  collect (char letters (random (length letters) random)))
            'string)))

(defun time-text (ns)
  "The time NS, nanoseconds since 1970, in the form of RFC 3339, to the second."
  (protobuf:timestamp-text (floor ns +ns-per-second+) 0))

(defun split-name (path)
  "The service and the method of PATH, \"/package.Service/Method\"."
  (let ((slash (position #\/ path :from-end t)))
    (values (subseq path 1 slash) (subseq path (1+ slash)))))

(defun variable-function (name)
  "A function of CALL-DATA that returns the value of ghz's variable NAME, or nil if ghz has no
variable NAME."
  (macrolet ((rows (&rest rows)
               `(cond ,@(loop for (row form) in rows
                              collect `((string= name ,row)
                                        (lambda (data) (declare (ignorable data)) ,form))))))
    (flet ((path (data) (method:rpc-method-path (call-data-method data)))
           (kind (data) (method:rpc-method-kind (call-data-method data)))
           (type-name (type) (protobuf:message-type-name type))
           (truth (value) (if value "true" "false")))
      (rows ("RequestNumber" (call-data-number data))
            ("WorkerID" (call-data-worker data))
            ("FullyQualifiedName" (substitute #\. #\/ (subseq (path data) 1)))
            ("ServiceName" (values (split-name (path data))))
            ("MethodName" (nth-value 1 (split-name (path data))))
            ("InputName" (type-name (method:rpc-method-request-type (call-data-method data))))
            ("OutputName" (type-name (method:rpc-method-response-type (call-data-method data))))
            ("IsClientStreaming" (truth (member (kind data) '(:client-streaming :bidi))))
            ("IsServerStreaming" (truth (member (kind data) '(:server-streaming :bidi))))
            ("Timestamp" (time-text (real-time-ns)))
            ("TimestampUnix" (floor (real-time-ns) +ns-per-second+))
            ("TimestampUnixMilli" (floor (real-time-ns) 1000000))
            ("TimestampUnixNano" (real-time-ns))
            ("UUID" (uuid-text (call-data-random data)))))))

(defun split-words (text)
  "The words of TEXT, separated by spaces; a word in double quotes may contain spaces, and is
returned without the quotes."
  (let ((words '()) (i 0))
    (loop
      (setf i (or (position #\Space text :start i :test-not #'char=)
                  (return (nreverse words))))
      (let* ((quoted (char= #\" (char text i)))
             (start (if quoted (1+ i) i))
             (end (or (position (if quoted #\" #\Space) text :start start)
                      (if quoted (fail-template "a quotation mark is not closed in ~S" text)
                          (length text)))))
        (push (subseq text start end) words)
        (setf i (if quoted (1+ end) end))))))

(defun action-function (text)
  "A function of CALL-DATA that returns the value of {{TEXT}}."
  (destructuring-bind (&optional (name "") &rest words)
      (split-words (string-trim "- " (substitute #\Space #\Tab text)))
    (labels ((number-at (index)
               (let ((word (nth index words)))
                 (handler-case (parse-integer (or word ""))
                   (error () (fail-template "~A takes an integer, not ~S" name word)))))
             (takes (count)
               (unless (= count (length words))
                 (fail-template "~A takes ~D argument~:P, not ~D" name count (length words)))))
      (cond ((and (uiop:string-prefix-p "." name) (null words)
                  (variable-function (subseq name 1))))
            ((string= name "newUUID")
             (takes 0)
             (lambda (data) (uuid-text (call-data-random data))))
            ((string= name "randomString")
             (takes 1)
             (let ((length (number-at 0)))
               (when (> length 1000000)
                 (fail-template "randomString makes at most 1000000 letters, not ~D" length))
               (lambda (data) (random-text length (call-data-random data)))))
            ((string= name "randomInt")
             (takes 2)
             (let ((low (number-at 0)) (high (number-at 1)))
               (unless (< low high)
                 (fail-template "randomInt takes two integers, the smaller first"))
               (lambda (data) (+ low (random (- high low) (call-data-random data))))))
            ((string= name "choice")
             (unless words (fail-template "choice takes one text or more"))
             (let ((words (coerce words 'simple-vector)))
               (lambda (data) (svref words (random (length words) (call-data-random data))))))
            (t (fail-template "there is no template {{~A}}; doc/tools/load.md lists the templates"
                              text))))))

(defun compile-template (text)
  "Return TEXT itself if it has no templates, else a list of its pieces: strings, and functions of a
CALL-DATA that return the text for a template. Signal TEMPLATE-ERROR if a template is malformed."
  (let ((pieces '()) (start 0))
    (loop
      (let ((open (search "{{" text :start2 start)))
        (unless open
          (push (subseq text start) pieces)
          (return (if (rest pieces) (nreverse pieces) text)))
        (let ((close (or (search "}}" text :start2 open)
                         (fail-template "{{ is not closed in ~S" (subseq text open)))))
          (push (subseq text start open) pieces)
          (push (action-function (subseq text (+ open 2) close)) pieces)
          (setf start (+ close 2)))))))

(defun expand-template (template data)
  "The text of TEMPLATE, as COMPILE-TEMPLATE returned it, for DATA, a CALL-DATA."
  (if (stringp template)
      template
      (with-output-to-string (stream)
        (dolist (piece template)
          (princ (if (functionp piece) (funcall piece data) piece) stream)))))
