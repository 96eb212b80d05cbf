;;;; The date of an answer, as text.

(in-package #:clgrpc.tests.exchange)

(test dates-have-two-digits
  "RFC 9110 section 5.6.7 requires this for days, hours, minutes and seconds."
  (loop for (seconds text) in '((784111777 "Sun, 06 Nov 1994 08:49:37 GMT")
                                (0 "Thu, 01 Jan 1970 00:00:00 GMT")
                                (951868799 "Tue, 29 Feb 2000 23:59:59 GMT")
                                (4133894400 "Fri, 31 Dec 2100 00:00:00 GMT"))
        do (is (string= text (exchange::date-text seconds)))))
