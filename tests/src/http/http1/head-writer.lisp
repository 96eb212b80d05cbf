;;;; The writer, whose output the parser must read.

(in-package #:clgrpc.tests.http1)

(defun written (function &rest arguments)
  "The text that FUNCTION appends to a buffer, called with it and ARGUMENTS."
  (let ((buffer (make-buffer :size 16)))
    (apply function buffer arguments)
    (text-of (buffer-octets buffer) (buffer-start buffer) (buffer-end buffer))))

(defun lines (text)
  "TEXT whose ends of lines are |."
  (with-output-to-string (stream)
    (loop for character across text
          unless (char= #\Return character)
            do (write-char (if (char= #\Newline character) #\| character) stream))))

(test heads-are-written
  (is (equal "HTTP/1.1 200 OK|content-type: text/plain|content-length: 2||"
             (lines (written #'write-response-head 200 '(("content-type" . "text/plain")) 2))))
  (is (equal "HTTP/1.1 400 Bad Request|content-length: 0|connection: close||"
             (lines (written #'write-response-head 400 '() 0 :connection "close"))))
  (is (equal "GET /a HTTP/1.1|host: b||"
             (lines (written #'write-request-head "GET" "/a" '(("host" . "b")) nil))))
  (is (equal "HTTP/1.1 200 OK|transfer-encoding: chunked||"
             (lines (written #'write-response-head 200 '() :chunked)))))

(test reasons-are-those-of-the-registry
  "Each status that a server may send has its phrase (RFC 9110 section 15), any other has none."
  (loop with known = '((100 . "Continue") (200 . "OK") (201 . "Created") (202 . "Accepted")
                       (204 . "No Content") (206 . "Partial Content") (301 . "Moved Permanently")
                       (302 . "Found") (303 . "See Other") (304 . "Not Modified")
                       (307 . "Temporary Redirect") (308 . "Permanent Redirect")
                       (400 . "Bad Request") (401 . "Unauthorized") (403 . "Forbidden")
                       (404 . "Not Found") (405 . "Method Not Allowed") (406 . "Not Acceptable")
                       (408 . "Request Timeout") (409 . "Conflict") (410 . "Gone")
                       (412 . "Precondition Failed") (413 . "Content Too Large")
                       (414 . "URI Too Long") (415 . "Unsupported Media Type")
                       (417 . "Expectation Failed") (422 . "Unprocessable Content")
                       (429 . "Too Many Requests") (431 . "Request Header Fields Too Large")
                       (500 . "Internal Server Error") (501 . "Not Implemented")
                       (502 . "Bad Gateway") (503 . "Service Unavailable")
                       (504 . "Gateway Timeout") (505 . "HTTP Version Not Supported"))
        for status from 100 to 599
        do (is (equal (format nil "HTTP/1.1 ~D ~@[~A~]|content-length: 0||" status
                              (cdr (assoc status known)))
                      (lines (written #'write-response-head status '() 0))))))

(test chunks-are-written
  (loop for (length text) in '((1 "1") (15 "f") (16 "10") (255 "ff") (256 "100") (4095 "fff"))
        for line = (lines (written #'write-chunk (make-octets length) 0 length))
        do (is (equal text (subseq line 0 (position #\| line)))))
  (is (equal "1a|abcdefghijklmnopqrstuvwxyz|"
             (lines (written #'write-chunk (wire "abcdefghijklmnopqrstuvwxyz") 0 26))))
  (is (equal "0||" (lines (written #'write-last-chunk))))
  (is (equal "0|a: b||" (lines (written #'write-last-chunk '(("a" . "b")))))))

(test heads-in-two-parts
  "A repeated head that is copied equals one that is written again."
  (flet ((in-parts (status fields body last)
           (map 'string #'code-char (concatenate 'octets (response-head-octets status fields body)
                                                 (last-head-octets last)))))
    (is (equal (written #'write-response-head 200 '(("x" . "y")) 3)
               (in-parts 200 '(("x" . "y")) 3 '())))
    (is (equal "HTTP/1.1 204 No Content|a: b||"
               (lines (in-parts 204 '() nil '(("a" . "b"))))))))

(test nobody-writes-a-second-field
  (dolist (fields (list (list (cons "a" (format nil "b~Cc" #\Newline)))
                        (list (cons "a" (format nil "b~Cc" #\Return)))
                        (list (cons (format nil "a~C" #\Newline) "b"))))
    (signals misuse (written #'write-response-head 200 fields 0))))

(test what-is-written-can-be-read
  (let ((parser (make-parser :client)))
    (expect-response parser "GET")
    (is (equal '((200 "OK" ("x: y") :chunked t) "abc" (:end "t: u"))
               (joined
                (feed parser
                      (map 'octets #'char-code
                           (concatenate 'string
                                        (written #'write-response-head 200 '(("x" . "y")) :chunked)
                                        (written #'write-chunk (wire "ab") 0 2)
                                        (written #'write-chunk (wire "abc") 2 3)
                                        (written #'write-last-chunk '(("t" . "u")))))))))))
