;;;; The DNS servers that the system's resolver asks, from its file resolv.conf. The servers are
;;;; used for records that getaddrinfo cannot look up, such as texts.

(in-package #:clgrpc.dns)

(defconstant +dns-port+ 53)
(defconstant +most-servers+ 3
  "The maximum number of DNS servers that are used. It equals that of the C library's resolver
(MAXNS).")

(defun parse-servers (text)
  "Return a list of the addresses, in the kernel's form, in the lines \"nameserver ADDRESS\" of
TEXT, the text of a resolv.conf. If TEXT has no such line, the list has the address of a server on
this machine."
  (let ((servers (loop for line in (uiop:split-string text :separator '(#\Newline))
                       for (word host) = (remove "" (uiop:split-string
                                                     line :separator '(#\Space #\Tab #\Return))
                                                 :test #'string=)
                       for address = (and (equal "nameserver" word) host
                                          (os:make-address host +dns-port+))
                       when address collect address)))
    (if servers
        (subseq servers 0 (min +most-servers+ (length servers)))
        (list (os:make-address "127.0.0.1" +dns-port+)))))

(defun system-servers ()
  "The addresses of the DNS servers that the system's resolver asks. The function reads a short
file."
  (parse-servers (handler-case (uiop:read-file-string "/etc/resolv.conf" :external-format :latin-1)
                   (error () ""))))
