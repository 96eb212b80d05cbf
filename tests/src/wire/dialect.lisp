;;;; Which dialect is found; what one does is in tests/src/server/dialect.lisp and opening.lisp.

(in-package #:clgrpc.tests.wire)
(in-suite :clgrpc.wire)

(test dialects-of-requests-are-found-by-content-type
  "The newest that accepts it; a name has one dialect."
  (flet ((accepting (type) (lambda (content-type) (string= type content-type)))
         (found (type)
           (let ((dialect (wire:content-type-dialect type)))
             (and dialect (wire:dialect-name dialect)))))
    (unwind-protect
         (progn
           (wire:define-dialect one :accepts (accepting "a"))
           (wire:define-dialect two :accepts (accepting "b"))
           (is (eq 'one (found "a")))
           (is (eq 'two (found "b")))
           (is (null (found "c")))
           (wire:define-dialect two :accepts (accepting "a"))
           (is (eq 'two (found "a")))
           (is (null (found "b")))
           (is (= 2 (length wire:**dialects**))))
      (wire:remove-dialect 'one)
      (wire:remove-dialect 'two))
    (is (null (found "a")))
    (is (null wire:**dialects**))))

(test dialects-of-connections-are-found-by-their-opening
  "HTTP/2 by its preface, others by what they say of the octets or by ALPN; :more while one may be."
  (flet ((opening (text &optional protocol)
           (let ((found (wire:opening-dialect protocol (ascii-octets text) 0 (length text))))
             (if (wire:connection-dialect-p found)
                 (wire::connection-dialect-name found)
                 found))))
    (is (null (opening "P")))
    (is (null (opening "GET")))
    (unwind-protect
         (progn
           (wire:add-connection-dialect
            (wire:make-connection-dialect
             :name 'get :alpn '("get/1")
             :opens (lambda (octets start end)
                      (let ((count (min 4 (- end start))))
                        (cond ((mismatch (ascii-octets "GET ") octets :end1 count
                                         :start2 start :end2 (+ start count))
                               nil)
                              ((< count 4) :more)
                              (t t))))
             :handler (loop:make-handler :input #'list)))
           (is (eq 'get (opening "GET /")))
           (is (eq :more (opening "GE")))
           (is (null (opening "PRI * HTTP/2.0")))
           (is (null (opening "PRI ")))
           (is (null (opening "PUT")))
           (is (null (opening "GET /" "h2")))
           (is (eq 'get (opening "" "get/1")))
           (is (search "get" (princ-to-string (first wire:**connection-dialects**)))))
      (wire:remove-connection-dialect 'get))
    (is (null wire:**connection-dialects**))))
