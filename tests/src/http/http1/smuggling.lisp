;;;; Requests by which others have been smuggled, and responses of the same kind. Each is refused,
;;;; or read as all readers do, since the field in question clearly has another name.
;;;;
;;;; The names are those of the techniques in DesyncBox.java of PortSwigger/http-request-smuggler
;;;; (commit 1a9af54), which gives them for a message that has both a length and chunks; those of
;;;; spjunk and backslash are from Amit Klein's "HTTP Request Smuggling in 2020". Those that exist
;;;; only in HTTP/2 are not among them.

(in-package #:clgrpc.tests.http1)

(defun with-codes (control &rest codes)
  (apply #'format nil control (mapcar #'code-char codes)))

(defparameter *techniques*
  ;; its name, the line of a field NAME that is VALUE, and whether the line is plainly another
  ;; field's. | is CR LF.
  `(("vanilla" "NAME: VALUE")
    ("underjoin1" "LEFT_RIGHT: VALUE" t)
    ("spacejoin1" "LEFT RIGHT: VALUE")
    ("space1" "NAME : VALUE")
    ("nameprefix1" "Foo: bar| NAME: VALUE")
    ("nameprefix2" ,(with-codes "Foo: bar|~CNAME: VALUE" 9))
    ("valueprefix1" "NAME:  VALUE")
    ("nospace1" "NAME:VALUE")
    ("linewrapped1" ,(with-codes "NAME:~C VALUE" 10))
    ("gareth1" ,(with-codes "NAME~C : VALUE" 10))
    ("badsetupCR" ,(with-codes "Foo: bar~CNAME: VALUE" 13))
    ("badsetupLF" ,(with-codes "Foo: bar~CNAME: VALUE" 10))
    ("vertwrap" ,(with-codes "NAME: ~C~CVALUE" 10 11))
    ("tabwrap" ,(with-codes "NAME: |~CVALUE" 9))
    ("multiCase" "UPPER: VALUE")
    ("0dwrap" ,(with-codes "Foo: bar|~CNAME: VALUE" 13))
    ("0dspam" ,(with-codes "LEFT~C-RIGHT: VALUE" 13))
    ("connection" "Connection: NAME|NAME: VALUE")
    ("spjunk" "NAME x: VALUE")
    ("backslash" "LEFT\\RIGHT: VALUE")
    ("badwrap" "X: y| NAME: VALUE|X-Blah-Ignore: z")
    ("spaceFF" ,(with-codes "NAME:~CVALUE" 255))
    ("unispace" ,(with-codes "NAME:~CVALUE" 160))
    ("accentTE" ,(with-codes "LEFT~CRIGHT: VALUE" 130))
    ("encode" "LEFT%45RIGHT: VALUE" t)
    ("http2hide" "Foo: b^~NAME: VALUE^~x: x" t)
    ("bodysplit" ,(with-codes "Foo: barn~C~CNAME: VALUE" 10 10))
    ,@(loop for code in '(0 9 11 12 13 127)
            collect (list (format nil "spacefix1:~D" code) (with-codes "NAME:~CVALUE" code))
            collect (list (format nil "prefix1:~D" code) (with-codes "NAME: ~CVALUE" code))
            collect (list (format nil "suffix1:~D" code) (with-codes "NAME: VALUE~C" code)))))

(defparameter *chunked-techniques*
  ;; as before, with transfer-encoding alone
  `(("commaCow" "NAME: chunked, identity")
    ("cowComma" "NAME: identity, chunked")
    ("contentEnc" "Content-Encoding: chunked" t)
    ("quoted" "NAME: \"chunked\"")
    ("aposed" "NAME: 'chunked'")
    ("dualchunk" "NAME: chunked|NAME: identity")
    ("revdualchunk" "NAME: identity|NAME: chunked")
    ("lazygrep" "NAME: chunk")
    ("nested" "NAME: identity, chunked, identity")
    ("accentCH" ,(with-codes "NAME: ch~Cnked" 150))
    ("doublecomma" "NAME: chunked,chunked")
    ("semicolon" "NAME: chunked;a=b")))

(defun replaced (text word with)
  (let ((start (search word text)))
    (if start
        (concatenate 'string (subseq text 0 start) with
                     (replaced (subseq text (+ start (length word))) word with))
        text)))

(defun line-for (line name value)
  "LINE for the field NAME with VALUE; LEFT and RIGHT are the parts of NAME around its dash."
  (let ((dash (position #\- name)))
    (loop for (word with) in `(("NAME" ,name) ("VALUE" ,value) ("UPPER" ,(string-upcase name))
                               ("LEFT" ,(subseq name 0 dash))
                               ("RIGHT" ,(subseq name (1+ dash))))
          do (setf line (replaced line word with)))
    line))

(defun is-not-smuggled (technique line name value other body framing)
  "Check that a request and a response with the field OTHER and LINE, a field NAME of VALUE that
TECHNIQUE has changed, are refused; if LINE clearly has another name, their bodies, whose text is
BODY, end by FRAMING."
  (let ((text (line-for line name value)))
    (loop for (role first) in '((:server "POST / HTTP/1.1|Host: a") (:client "HTTP/1.1 200 OK"))
          for requests = (and (eq :client role) '("GET"))
          do (dolist (lines (list (list text other) (list other text)))
               (let ((message (format nil "~A|~{~A|~}|~A" first lines body)))
                 (if framing
                     (is (eql framing (framing-of message role requests)) "~A: ~S" technique
                         message)
                     (is (member (status-of message :role role :requests requests) '(400 501))
                         "~A: ~S" technique message)))))))

(defun framing-of (message role requests)
  "The end of the body of the first message in MESSAGE."
  (let ((heads (remove-if-not #'consp (said message :role role :requests requests))))
    (fourth (first heads))))

(test chunks-hidden-behind-a-length
  (loop for (technique line other) in (append *techniques* *chunked-techniques*)
        do (is-not-smuggled technique line "Transfer-Encoding" "chunked" "Content-Length: 5" "0||GE"
                            (and other 5))))

(test a-length-hidden-behind-chunks
  (loop for (technique line other) in *techniques*
        do (is-not-smuggled technique line "Content-Length" "5" "Transfer-Encoding: chunked"
                            "2|ab|0||" (and other :chunked))))
