;;;; The page, and the data that it requests: the events, and the options. The page's files in page/
;;;; are compiled into the image and sent as one. Other systems can add pages, such as that of
;;;; workflows. The policy of a page (Content-Security-Policy) lets it run its own script, which a
;;;; new nonce identifies each time, and send requests to the server that it came from; nothing
;;;; else.

(in-package #:clgrpc.console)

(eval-when (:compile-toplevel :load-toplevel :execute)
  (defun cut-at (text mark)
    "A list of the parts of TEXT that MARK separates."
    (loop for start = 0 then (+ end (length mark))
          for end = (search mark text :start2 start)
          collect (subseq text start end)
          while end)))

(defmacro page-parts (page &rest marks-and-files)
  "The parts of PAGE, a file below the folder of this one, as a list of strings; the nonce goes
between them. MARKS-AND-FILES are alternately words and files: where PAGE has a word in double
braces, the contents of the file after it are inserted."
  (labels ((file-text (name)
             (uiop:read-file-string
              (merge-pathnames name (or *compile-file-truename* *load-truename*))
              :external-format :utf-8))
           (fill-in (text mark name)
             (destructuring-bind (before after) (cut-at text (format nil "{{~A}}" mark))
               (concatenate 'string before (file-text name) after))))
    (loop with text = (file-text page)
          for (mark name) on marks-and-files by #'cddr
          do (setf text (fill-in text mark name))
          finally (return `',(cut-at text "{{nonce}}")))))

(define-load-time-global **page-parts**
  (page-parts "page/console.html" "style" "page/console.css" "common" "page/common.js"
              "script" "page/console.js"))

(defun page-text (parts nonce)
  (with-output-to-string (stream)
    (loop for (part . more) on parts
          do (write-string part stream)
             (when more (write-string nonce stream)))))

(defun page-policy (nonce)
  (format nil "default-src 'none'; script-src 'nonce-~A'; style-src 'nonce-~:*~A'; ~
               connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; ~
               frame-ancestors 'none'" nonce))

(defun send-page (parts)
  "Answer with the page that PARTS, a value of PAGE-PARTS, make. From any thread."
  (let ((nonce (random-hex 16)))
    (values 200
            (safe-headers "text/html; charset=utf-8"
                          (cons "content-security-policy" (page-policy nonce)))
            (page-text parts nonce))))

(defun send-json (text)
  "Answer with TEXT, which is JSON. From any thread."
  (values 200 (safe-headers "application/json") text))

;;; Options

(defun option-object (row value)
  (list (cons "name" (string-downcase (option-row-name row)))
        (cons "of" (string-downcase (option-row-scope row)))
        (cons "value" (if (eq t value) :true (if value (json-number value) :false)))
        (cons "changed" (if (eql value (option-row-default row)) :false :true))
        (cons "unit" (if (eq t (option-row-default row)) "" (option-row-unit row)))
        (cons "reason" (substitute #\Space #\Newline (option-row-reason row)))))

(defun options-object (server)
  "The options with which SERVER runs."
  (list (cons "addresses" (json-list (server:server-addresses server)))
        (cons "options" (json-list (loop for (row . value)
                                           in (option-values (serving:server-options server))
                                         collect (option-object row value))))))

(defun send-options ()
  (send-json (write-json (json-list (mapcar #'options-object (shown-servers))))))

;;; Pages of others

(defun add-page (console name title function)
  "Add a page to CONSOLE. The page's path is NAME, a string of letters, below CONSOLE's path;
CONSOLE's own page links to it by TITLE. FUNCTION is called for each request whose path is below
NAME/, with the request and the rest of the path. FUNCTION returns the status, headers and text of
the answer, as SEND-PAGE, SEND-JSON and REFUSE do, and may wait. From any thread."
  (check-type name string)
  (sb-thread:with-mutex ((console-lock console))
    (setf (console-pages console)
          (append (remove name (console-pages console) :key #'first :test #'string=)
                  (list (list name title function))))))

(defun page-below (console below)
  "The page of CONSOLE to which BELOW, a path, belongs: a list of its name, title and function.
Return nil if BELOW belongs to no page."
  (let ((slash (position #\/ below)))
    (and slash (assoc (subseq below 0 slash) (console-pages console) :test #'string=))))

;;; The handler

(defun path-below (console request)
  "The part of REQUEST's path after CONSOLE's path."
  (let ((path (exchange:http-request-path request)))
    (subseq path (min (length path) (length (console-path console))))))

(defun answer (console request)
  "Answer REQUEST, which may see CONSOLE."
  (let* ((below (path-below console request)) (page (page-below console below)))
    (cond ((string= below "") (send-page **page-parts**))
          (page (destructuring-bind (name title function) page
                  (declare (ignore title))
                  (funcall function request (subseq below (1+ (length name))))))
          ((string= below "options") (send-options))
          ((string/= below "events") (refuse 404 "The console has no such page."))
          ((string/= "GET" (exchange:http-request-method request))
           (refuse 405 "Events are for GET."))
          ((add-viewer console request))
          (t (refuse 503 (format nil "~D viewers are already connected here." +viewers+))))))

(defun console-handler (console)
  "Return a handler for START-SERVER's :http that shows CONSOLE, which MAKE-CONSOLE returned, in a
browser, at CONSOLE's path. The server may be one that serves gRPC. If other machines can reach a
server with this handler, a server for the console alone is the better choice. From any thread."
  (check-type console console)
  (exchange:http-handler (console-path console)
                       (lambda (request)
                         (call-if-allowed console request
                                          (lambda () (answer console request))))))

(defun console-url (console server)
  "Return the address at which a browser finds CONSOLE, whose handler SERVER has. The address is a
string, which is secret because it contains the token. Return nil if SERVER listens on no address of
the network. From any thread."
  (when-let ((address (find-if-not (lambda (address)
                                     (or (uiop:string-prefix-p "unix" address)
                                         (uiop:string-prefix-p "inproc:" address)))
                                   (server:server-addresses server))))
    (format nil "http~:[~;s~]://~A~A~@[?token=~A~]" (server:server-speaks-tls-p server)
            address (console-path console) (console-token console))))
